"""One kernel, seen from the host: its requests and messages, from start to end. Everything that it sends is hostile."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from cellblock.errors import BusyError, KernelDiedError, LaunchError
from cellblock.host.closing import Closing
from cellblock.host.descriptors import hung_up
from cellblock.host.kernels.cell import Cell
from cellblock.host.kernels.exit_status import Death, Restored, describe_status, exit_status
from cellblock.host.kernels.family import Copy, Family
from cellblock.host.kernels.kernel_output import KernelOutput
from cellblock.host.kernels.memory import MemoryWatch
from cellblock.host.kernels.recording import NO_RECORDING, Recording
from cellblock.host.kernels.requests import Requests
from cellblock.host.launch.control import Control, ControlObserver
from cellblock.host.launch.kernel_spec import DeathNotice, KernelSpec
from cellblock.host.launch.launcher import Ends
from cellblock.host.launch_failures import refused
from cellblock.model import STATE_LOST, Recovery, Status
from cellblock.wire.control import Interrupt, KillChildren, Unblocked
from cellblock.wire.frames import VERSION
from cellblock.wire.messages import (
    Answer,
    Changed,
    Clear,
    Comm,
    Command,
    Completed,
    Continue,
    Display,
    Execute,
    Idle,
    Idling,
    InputRequest,
    Inspected,
    Install,
    Parked,
    Part,
    Question,
    Ready,
    Reply,
    Shutdown,
    Stream,
    ToHost,
)
from cellblock.wire.protocol import State

_log = logging.getLogger("cellblock.sessions")
_CLOSED = "it was closed"
_MOMENT = 0.001
_FREEZE = 5.0  # seconds for all processes to stop: on a busy machine one may get no turn for a second
_ATTEMPTS = 2  # how often they are looked at before they continue for a moment
_LONGEST_MOMENT = 0.1  # of those for which they continue, each twice as long as the one before
_GRACE = 0.5  # seconds for exit handlers, and for init to end what is left


class Kernel(ControlObserver):
    """One process of a session's interpreter.

    Attributes:
        family: The kernels and copies that share its init.
        ready: Done when it takes cells.
        wanted: Its specification.
        channel: The connection to its worker.
        requests: Handles the requests of its code while a cell runs.
        recording: Records what a later host needs to continue it when this one is killed.
        count: The number of its last execution.
        cells: How many cells it has begun.
        control: The connection to its init, for actions that the kernel itself does not perform.
        memory: Watches the memory of its processes.
        output: Its output since its last cell ended, and the running cell.
        death_reported: Whether a result has reported its death.
        death: Why it ended; None while it lives.
        of_copy: Whether it was made from a copy of another one, with its variables.
        all_lost: Whether it is a fresh one in the place of one that has died, whose variables are lost.
        origin: That copy, until the kernel takes cells.
        paused: Whether what its code has left running waits for `go_on`, or for a request (`Parked.pending`).
        restored: The state that it continues from, if it replaces a kernel that died.
    """

    def __init__(
        self,
        family: Family,
        number: int,
        ends: Ends,
        wanted: KernelSpec,
        on_closed: Callable[[Kernel], object],
        recording: Recording = NO_RECORDING,
        *,
        listen: bool = True,
    ) -> None:
        """Take over a kernel whose processes exist, or are about to.

        Args:
            family: The kernels that share its init.
            number: Its number, given by the host.
            ends: The host's ends of its connections.
            wanted: Its specification.
            on_closed: Called when it has ended.
            recording: Records what a later host needs to continue it when this one is killed.
            listen: Whether to start listening; if not, `recovery` does.
        """
        self._loop = asyncio.get_running_loop()
        self.family = family
        self._number = number
        self._ends = ends
        self._on_closed = on_closed
        self.wanted = wanted
        self.recording = recording
        self.output = KernelOutput(wanted, recording)
        self.channel = recording.channel(
            ends,
            self._take,
            self.output.add_text,
            self._condemn,
            lambda: self.output.collector.behind,
            self.write_base,
        )
        self._query: asyncio.Future[Answer] | None = None
        self._changed: Changed | None = None
        self._condemned: str | None = None
        self._closing = Closing()
        self._discarded = self._remembered = self._released = False
        self._dying = False
        self._heard_out = asyncio.Event()
        self.death_reported = False
        self.count = 0
        self.cells = 0
        self.death: Death | None = None
        self.restored: Restored | None = None
        self.of_copy = self.paused = self.all_lost = False
        self.origin: Copy | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.control = Control(ends.control, self, wanted.takers, recording.before_exit)
        self.memory = MemoryWatch(wanted.memory, ends.group, self.control, lambda: self.output.cell is not None, self._condemn)
        self.requests = Requests(self, self.channel, self.output, recording, self._condemn)
        family.add(self)
        if not listen:
            family.idling.take_over()
        if listen:
            self.write_base(None if wanted.notice is None else self.output.with_notice(wanted.notice))
            self.control.read()
            self.channel.listen(True)

    # -- asking --------------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Its number for its host and all later hosts."""
        return self._number

    @property
    def position(self) -> str:
        """Where its next cell begins. Unique among all cells of all kernels, even if hosts are killed."""
        return f"{self._number}/{self.cells}"

    @property
    def fit(self) -> bool:
        """Whether it would take a cell now, as far as can be seen."""
        return not self.family.idling.lifted and self.usable

    @property
    def usable(self) -> bool:
        """Whether it would take a cell, if need be after its session is woken, as far as can be seen."""
        lives = self.death is None and not self._dying
        return lives and self.output.cell is None and not hung_up(self._ends.channel.fileno())

    @property
    def at_rest(self) -> bool:
        """Whether it takes cells and does not run one, as far as the host knows."""
        started = self.ready.done() and self.death is None and not self._dying
        return started and not self.paused and self.output.cell is None and self.channel.state is State.IDLE

    def ask_if_idle(self) -> None:
        """Ask whether its code has left anything running; the answer goes to the family.

        Raises:
            OSError: It could not be recorded for a later host, and was not sent.
        """
        self.channel.send(Idle())

    async def wake(self) -> None:
        """Prepare its sandbox for code: see `Idling.wake`. It comes before `begin` and `ask`."""
        await self.family.idling.wake(self.control)

    def begin(self, cell: Cell) -> None:
        """Run a cell; `cell.ended` is set when it has ended.

        Raises:
            KernelDiedError: The kernel has ended.
            ProtocolError: A cell is running already.
            BusyError: It could not be recorded for a later host, and was not sent.
        """
        self._check_alive()
        self.attach(cell)
        self.output.show_so_far()
        self.memory.look_soon()
        self.cells += 1
        try:
            self.write_base(more=True)
            asks = cell.on_input is not None
            self.channel.send(Execute(cell.code, asks, cell.silent, cell.parent, cell.traceparent))
            self.paused = False
        except OSError as error:
            self.cells -= 1
            self.output.withdraw()
            self.write_base(more=True)  # the one before says that the cell runs
            raise _unrecorded(error) from error

    def attach(self, cell: Cell) -> None:
        """Make a cell the running one."""
        self.output.attach(cell, self.memory.limit, lambda paused: self.channel.listen(not paused))

    def take_over_output(self, dead: Kernel) -> None:
        """Replace a kernel that died while no cell ran: the next cell shows its last output, and says so."""
        if (notice := dead.notice(self.restored)) is None:
            return
        dead.death_reported = True
        self.output.take_over(dead.output, notice)

    def notice(self, restored: Restored | None) -> DeathNotice | None:
        """Return the notice of its death for the next result; None if it lives, or its last cell's result reports it.

        Args:
            restored: The state that the session continues from; None: a fresh kernel.
        """
        if self.death is None or self.death_reported:
            return None
        outcome = STATE_LOST if restored is None else restored.sentence
        recovery: Recovery | None = "restarted" if restored is None else "restored_earlier" if restored.lost else None
        return DeathNotice(f"[cellblock] The kernel died between cells: {self.death.cause}. {outcome}\n", recovery)

    @property
    def state(self) -> State:
        """The state of its conversation."""
        return self.channel.state

    def ask(self, question: Question) -> asyncio.Future[Answer]:
        """Ask a question while no cell runs; the future gets the answer, or `KernelDiedError` if the kernel ends.

        Raises:
            KernelDiedError: The kernel has ended.
            BusyError: It could not be recorded for a later host, and was not sent.
        """
        self._check_alive()
        try:
            self.channel.send(question)
        except OSError as error:
            raise _unrecorded(error) from error
        self.paused = False
        self._query = self._loop.create_future()
        return self._query

    def go_on(self, *, anyway: bool = False) -> None:
        """Resume what its code has left running, if it waits for that.

        Args:
            anyway: Also if this is unknown: an earlier host may have asked for the copy.
        """
        if (self.paused or anyway) and self.death is None and self.channel.state is State.IDLE:
            with suppress(OSError):  # it cannot be recorded now: the next request lets it continue, too
                self.channel.send(Continue())
                self.paused = False

    async def answered(self, patience: float) -> None:
        """Wait until it has answered the question of another host: it takes nothing before."""
        if self.channel.state is State.QUERY and self._query is None and self.death is None:
            self._query = self._loop.create_future()
            await asyncio.wait([self._query], timeout=patience)

    def take_changed(self) -> Changed | None:
        """Return the changes that its cells have reported, once; None if they do not report any."""
        changed, self._changed = self._changed, None
        return changed

    async def interrupt(self) -> None:
        """Send SIGINT to the kernel's process group. When this returns, the signal is on its way."""
        await self.control.command(Interrupt())

    async def begun(self, patience: float) -> None:
        """Wait until the worker has read the cell that was sent; an interrupt will then hit it."""
        for _ in range(round(patience / _MOMENT)):
            if self.output.cell is None:
                return
            if self.channel.all_read:
                return
            await asyncio.sleep(_MOMENT)

    async def kill_children(self) -> None:
        """Kill every process that code of this kernel has started."""
        await self.control.command(KillChildren())

    async def kill(self, why: str | None = None) -> None:
        """End every process of the kernel, whatever they are doing; ``why`` is reported as the cause of its death."""
        if self.death is None:
            self._condemned = self._condemned or why
        await self.control.end(self.family.grace(4 * _GRACE if self.family.shared else _GRACE))
        if not self.control.gone.done() and self.origin is not None:
            # The copy never forked, because it is stopped, say. Without it, init ends the kernel that was to be made.
            self.family.drop(self.origin)
            await asyncio.wait([self.control.gone], timeout=4 * _GRACE)
        if not self.control.gone.done() and not self.control.quiet.done():
            self.family.kill()
            await asyncio.wait([self.control.gone], timeout=4 * _GRACE)

    async def close(self) -> None:
        """End the kernel: gracefully if it is idle, by force if it is not or does not exit. It can be repeated."""
        await self._closing.finish(self._close)

    async def freeze(self) -> int:
        """Stop all its processes; return how many could not be stopped."""
        deadline = self._loop.time() + _FREEZE
        moment = _MOMENT
        for attempt in itertools.count(1):
            left = await self.control.freeze()
            if not left or self._loop.time() >= deadline:
                break
            if attempt % _ATTEMPTS == 0:
                # A thread that has started a program by vfork waits for the new process to execute it, and cannot stop before.
                # If the new process was stopped before, both have to continue, and long enough to get there.
                self.control.thaw()
                moment = min(2 * moment, _LONGEST_MOMENT)
                await asyncio.sleep(moment)
            else:
                await asyncio.sleep(_MOMENT)
        return left

    def thaw(self) -> None:
        """Resume its processes."""
        self.control.thaw()

    def remember(self) -> None:
        """Record that another kernel is about to replace it: if it died with a cell, a later host is told, until `forget`.

        If a host was killed before the cell's result was delivered, no one else would know how the
        cell ended.
        """
        if self.death_reported and not self._closing.begun:
            self._remembered = self.recording.replaced()

    async def forget(self) -> None:
        """End it, and tell no later host about it: the next cell has begun, or none will."""
        self._remembered = False
        await self.close()
        self._on_closed(self)

    async def discard(self) -> None:
        """End the kernel like `close`, but by force: its exit handlers belong to a state that was left."""
        self._discarded = True
        await self.close()

    async def step_aside(self, ended: Callable[[], object]) -> None:
        """End the kernel like `discard`, but wait only until nothing of it can run or be noticed.

        The system may still free its memory then. An error after that is raised by `close`, which tries again.

        Args:
            ended: Called when it has ended.
        """
        self._discarded = True
        ending = self._closing.begin(self._close)
        ending.add_done_callback(lambda task: ended() if not task.cancelled() and task.exception() is None else None)
        await asyncio.wait([ending, self.control.quiet], return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            ending.result()
        else:
            self.family.stop_counting(self)

    async def _close(self) -> None:
        if not self._discarded and self.death is None and self.channel.state is State.IDLE:
            self._condemned = _CLOSED
            # It cannot be recorded, or its exit handlers may not run now: then the kernel is killed below.
            with suppress(OSError, BusyError):
                await self.wake()
                self.channel.send(Shutdown())
                await asyncio.wait([self.control.gone], timeout=_GRACE)
        if not self.control.gone.done():
            await self.kill(_CLOSED)
        self._die(None)
        if not self._released:  # this may be repeated, and the numbers of closed descriptors are soon those of others
            self._released = True
            self.control.close()
            self._ends.close()
            self.recording.close()
        await self.family.leave(self)
        if not self._remembered:
            self._on_closed(self)

    async def started(self, timeout: float) -> None:
        """Wait until the kernel takes cells.

        Raises:
            LaunchError: It ended before that, or took too long.
        """
        began = time.perf_counter()
        await asyncio.wait([self.ready], timeout=timeout)
        if not self.ready.done():
            raise LaunchError(f"the kernel was not ready within {timeout:g} s{self._said()}")
        self.ready.result()
        took = 1000 * (time.perf_counter() - began)
        _log.info("%s: kernel %d ready in %.1f ms", self.wanted.session, self._number, took)

    async def settle(self) -> None:
        """If the worker is gone and its exit was not reported yet, wait for the report."""
        if self.death is None and hung_up(self._ends.channel.fileno()):
            await asyncio.wait([self.control.gone], timeout=4 * _GRACE)
        if self._dying:
            await self._heard_out.wait()

    def abandon(self) -> None:
        """Treat the kernel as dead: no attempt to end it has worked."""
        self._die(None)

    @property
    def packages(self) -> str | None:
        """The directory for the packages of its session; None if its sandbox has none."""
        return self.family.packages

    def _check_alive(self) -> None:
        if self.death is not None:
            raise KernelDiedError(f"the kernel died: {self.death.cause}")

    # -- messages ------------------------------------------------------------------------------------------------------

    def _take(self, message: ToHost) -> None:
        match message:
            case Stream(name=name, text=text, behind=behind):
                if behind:
                    self.channel.catch_up()
                self.output.add_text(name, text)
            case Reply():
                self.count = message.execution_count
                self.channel.drain_pipes()
                self._end_cell(message)
            case Display(behind=behind):
                if behind:
                    self.channel.catch_up()
                self.output.add_display(message)
            case Part(mime=mime, data=data):
                self.output.collector.add_part(mime, data)
            case Clear(wait=wait):
                self.output.clear(wait)
            case Comm():
                if self.output.cell is not None:
                    self.output.cell.events.pass_on(message)
            case InputRequest() | Install() | Command():
                self.requests.attend(message)
            case Changed() if self.output.cell is not None:
                self._changed = message if self._changed is None else self._changed.then(message)
            case Idling(pending=pending):
                self.family.idling.answered(self.control, pending=pending)
            case Changed() | Completed() | Inspected() | Parked():
                self.family.idling.touch()
                if isinstance(message, Parked):
                    self.paused = message.pending
                if self._query is not None and not self._query.done():
                    self._query.set_result(message)
            case Ready(version=version):
                if version != VERSION:
                    self._condemn(f"it speaks version {version} of the wire, and this host {VERSION}")
                elif not self.ready.done():
                    self.ready.set_result(None)

    def stopping(self, reason: Status | None, means: Recovery) -> None:
        """Record how the running cell is being stopped."""
        self.output.collector.hurry()
        self.recording.stopping(reason, means)

    def _end_cell(self, ending: Reply | Death) -> None:
        self.family.idling.touch()
        cell = self.output.detach()
        if cell is not None:
            self.death_reported = isinstance(ending, Death)
            cell.finish(ending)

    # -- another host's kernel -----------------------------------------------------------------------------------------

    def write_base(self, output: KernelOutput | None = None, *, more: bool = False) -> None:
        """Record its present state for a later host."""
        output = output or self.output
        self.recording.base(
            output.collector,
            output.cell,
            after_death=output.after_death,
            count=self.count,
            cells=self.cells,
            more=more,
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def violated(self, what: str) -> None:
        """See `ControlObserver`."""
        self._condemn(what)

    def measured(self, used: int, copies: int, excess: str) -> None:
        """See `ControlObserver`."""
        self.memory.check(used, copies, excess)

    def unblocked(self, message: Unblocked) -> None:
        """See `ControlObserver`."""
        self.family.idling.unblocked(message)

    def _condemn(self, why: str) -> None:
        """Kill the kernel for a violation."""
        if self._condemned is None and self.death is None:
            self._condemned = why
            self.family.end(self.control)

    def exited(self, status: int | None) -> None:
        """Record how its worker has exited: it counts as dead when all of its output was read."""
        if not self._dying:
            self._dying = True
            self.channel.hear_out(lambda: self._condemned is None, lambda: self._die(status))

    def _die(self, status: int | None) -> None:
        if self.death is not None:
            return
        self.memory.stop()
        self.channel.end()
        ended_by_us = self.memory.cause_of_death() or self._condemned
        cause = ended_by_us or describe_status(status)
        self.death = Death(cause, None if ended_by_us else exit_status(status))
        _log.info("%s: kernel %d ended: %r", self.wanted.session, self._number, cause)
        self._heard_out.set()
        if not self.ready.done():
            if self.control.refused is not None:
                self.ready.set_exception(refused(self.control.refused))
            else:
                self.ready.set_exception(self.family.explain(self._said(), status, cause))
            self.ready.exception()  # mark as retrieved: there may be no waiter
        self.control.give_up(f"the kernel died: {cause}")
        if self._query is not None and not self._query.done():
            self._query.set_exception(KernelDiedError(f"the kernel died: {self.death.cause}"))
            self._query.exception()  # mark as retrieved: there may be no waiter
        self._end_cell(self.death)

    def _said(self) -> str:
        self.channel.drain_pipes()
        return "".join(item.text or "" for item in self.output.collector.items())[-4000:]


def _unrecorded(error: OSError) -> BusyError:
    return BusyError(
        f"this cannot be kept for a later host ({error.strerror}), so nothing was done: free memory, and try again"
    )
