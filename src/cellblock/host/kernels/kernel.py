"""One kernel, seen from the host: its requests and messages, from start to end. Everything it sends is untrusted."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from cellblock.errors import NO_NETWORK, NO_NETWORK_BY_LANDLOCK, BusyError, KernelDiedError, LaunchError
from cellblock.host.closing import Closing
from cellblock.host.descriptors import hung_up
from cellblock.host.kernels.cell import Cell, Rights
from cellblock.host.kernels.channel import NO_RECORDING, ChannelHandlers, Extra, Recording, Request
from cellblock.host.kernels.exit_status import Death, Restored, describe_status, exit_status
from cellblock.host.kernels.family import Copy, Family
from cellblock.host.kernels.memory import MemoryWatch
from cellblock.host.kernels.requests import answers, recovered
from cellblock.host.launch.control import Control, ControlObserver
from cellblock.host.launch.kernel_spec import DeathNotice, KernelSpec, RunningKernel
from cellblock.host.launch.launcher import Ends
from cellblock.host.launch_failures import refused
from cellblock.host.output.collect import Collector
from cellblock.model import STATE_LOST, Recovery, Status, StreamName
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
    ToWorker,
)
from cellblock.wire.protocol import State

_log = logging.getLogger("cellblock.sessions")
_CLOSED = "it was closed"
_MOMENT = 0.001
_FREEZE = 5.0  # seconds for all processes to stop: on a busy machine one may not be scheduled for a second
_ATTEMPTS = 2  # number of checks before the processes continue briefly
_LONGEST_MOMENT = 0.1  # upper limit of the exponential backoff between them, in seconds
_GRACE = 0.5  # seconds for exit handlers, and for init to end the rest


class KernelOutput:
    """The output of a kernel's running cell, or since its last cell.

    Attributes:
        cell: The running cell, if any.
        collector: Collects the output.
        after_death: The recovery that the next result reports for the previous kernel, if its death is unreported.
        elsewhere: Takes the output instead, while the kernel works for another kernel.
        lacks: Lines about what the kernel lacks because it was made from a copy. The next cell shows them.
    """

    def __init__(self, wanted: KernelSpec, recording: Recording) -> None:
        """Start without output.

        Args:
            wanted: The kernel's specification.
            recording: Records output from outside the kernel.
        """
        self._wanted = wanted
        self._recording = recording
        self.cell: Cell | None = None
        self.collector = self._new_collector()
        self.after_death: Recovery | None = None
        self.elsewhere: Callable[[StreamName, bytes], None] | None = None
        self.lacks: list[str] = []

    def _new_collector(self) -> Collector:
        return Collector(self._wanted.limits, self._wanted.spill_to)

    # -- the running cell ----------------------------------------------------------------------------------------------

    @property
    def condemned(self) -> bool:
        """Whether the running cell is stopped by killing the kernel. Only the kernel's death ends it, even after a reply."""
        return self.cell is not None and self.cell.recovery == "restarted"

    def attach(self, cell: Cell, memory: int | None, pause: Callable[[bool], None]) -> None:
        """Set the running cell.

        Args:
            cell: The cell. It also receives output of background work since the last cell.
            memory: The kernel's memory limit in bytes, if any.
            pause: Pauses (True) or resumes the kernel's output.
        """
        wanted = self._wanted
        policy, tier = wanted.policy, wanted.tier
        offline = NO_NETWORK_BY_LANDLOCK if tier.ours and not tier.own_network else ""
        if tier.own_network and not (policy.network.allow or policy.network.ask):
            offline = NO_NETWORK
        for line in self.take_lacks():
            self.collector.add_text("stderr", f"{line}\n".encode())
        rights = Rights(memory, policy.resources.packages > 0, tier.sandboxed, offline)
        cell.attach(self.collector, rights=rights, after_death=self.after_death, pause=pause)
        self.cell = cell

    def take_lacks(self) -> list[str]:
        """Return the lines about what the kernel lacks, once."""
        lacks, self.lacks = self.lacks, []
        return lacks

    def show_so_far(self) -> None:
        """Show the running cell's reader the output from before the cell."""
        if self.cell is not None and self.cell.events.streaming:
            for shown, stream in self.collector.so_far():
                self.cell.events.emit(shown, stream)

    def detach(self) -> Cell | None:
        """Remove and return the running cell, if any, and start with empty output."""
        cell, self.cell = self.cell, None
        if cell is not None:
            if not cell.silent:
                self.after_death = None  # it was reported
            self.collector = self._new_collector()
        return cell

    def withdraw(self) -> None:
        """Withdraw the running cell, which was not sent. The next cell shows its output and reports."""
        self.cell = None

    def take_over(self, dead: KernelOutput, notice: DeathNotice) -> None:
        """Start with another kernel's last output and death notice."""
        ours, self.collector = self.collector, dead.collector
        self._add_notice(notice)
        for item in ours.items():
            self.collector.add_text(item.name or "stdout", (item.text or "").encode())

    def with_notice(self, notice: DeathNotice) -> KernelOutput:
        """Return the output for the next host in case this one is killed before `take_over`."""
        output = KernelOutput(self._wanted, NO_RECORDING)
        output._add_notice(notice)
        return output

    def _add_notice(self, notice: DeathNotice) -> None:
        self.collector.add_text("stderr", notice.text.encode())
        self.after_death = notice.recovery

    # -- from the kernel -----------------------------------------------------------------------------------------------

    def add_text(self, name: StreamName, text: bytes, *, ours: bool = False) -> None:
        """Handle text from the kernel. `ours` is as for `CellEvents.emit`."""
        if self.elsewhere is not None:
            self.elsewhere(name, text)
            return
        self.collector.add_text(name, text)
        if self.cell is not None and self.cell.events.streaming:
            self.cell.events.emit(text.decode("utf-8", "replace"), name, ours=ours)

    def add_display(self, message: Display) -> None:
        """Handle a displayed value."""
        bundle = self.collector.add_display(message)
        if bundle is not None and self.cell is not None:
            self.cell.events.show(bundle, message.kind)
        while self.collector.unsaid:
            self.add_text("stderr", f"{self.collector.unsaid.pop(0)}\n".encode(), ours=True)

    def clear(self, wait: bool) -> None:
        """Drop the output so far; with `wait`, when the next output arrives."""
        self.collector.clear(wait)
        if self.cell is not None:
            self.cell.events.clear(wait)

    # -- from elsewhere ------------------------------------------------------------------------------------------------

    def insert(self, name: StreamName, text: bytes) -> None:
        """Add text from outside the kernel to the output of the running or next cell."""
        self.add_extra(Extra(name, text))

    def add_extra(self, extra: Extra) -> None:
        """Handle output from outside the kernel."""
        self._recording.write_extra(extra)
        if extra.shown is not None:
            self.add_display(Display("display_data", extra.shown))
        elif extra.kept:
            self.add_text(extra.name, extra.text, ours=extra.ours)
        elif self.cell is not None:
            self.cell.events.emit(extra.text.decode("utf-8", "replace"), extra.name, ours=extra.ours)


class Kernel(ControlObserver):
    """One process of a session's interpreter.

    Attributes:
        family: The kernels and copies that share its init.
        ready: Done when the kernel accepts cells.
        wanted: Its specification.
        channel: The connection to its worker.
        recording: Records what a later host needs to continue the kernel.
        count: The number of the last execution.
        cells: Number of cells begun.
        control: The connection to init, for actions outside the kernel.
        memory: Watches the memory of its processes.
        output: The running cell, and the output since the last cell ended.
        death_reported: Whether a result reported the kernel's death.
        death: Why the kernel ended; None while it lives.
        of_copy: Whether the kernel was created from a copy of another one, with its variables.
        all_lost: Whether this kernel replaced a dead one without its variables.
        origin: That copy, until the kernel accepts cells.
        paused: Whether its background code waits for `go_on` or a request (`Parked.pending`).
        restored: The state that it continues from, if it replaces a dead kernel.
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
        """Take ownership of a kernel whose processes exist or are about to.

        Args:
            family: The kernels that share its init.
            number: Its number, from the host.
            ends: The host's ends of its connections.
            wanted: Its specification.
            on_closed: Called when it has ended.
            recording: Records what a later host needs to continue the kernel.
            listen: Whether to start listening now. If not, `recovery` does.
        """
        self._loop = asyncio.get_running_loop()
        self.family = family
        self._number = number
        self._ends = ends
        self._on_closed = on_closed
        self.wanted = wanted
        self.recording = recording
        self.output = KernelOutput(wanted, recording)
        handlers = ChannelHandlers(self._take, self.output.add_text, self._condemn, self._behind, self.write_base)
        self.channel = recording.channel(ends, handlers)
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
        takers = {name: functools.partial(wanted.on_listener, family.number, name) for name in wanted.setup.listeners}
        self.control = Control(ends.control, self, takers, recording.before_exit)
        self.memory = MemoryWatch(_memory_limit(wanted), ends.group, self.control, self._busy, self._condemn)
        family.add(self)
        if not listen:
            family.idling.take_over()
        else:
            self.write_base(None if wanted.notice is None else self.output.with_notice(wanted.notice))
            self.control.read()
            self.channel.listen(True)

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The kernel's number for its host and all later hosts."""
        return self._number

    @property
    def position(self) -> str:
        """The position of the next cell, unique among all cells of all kernels, even if hosts are killed."""
        return f"{self._number}/{self.cells}"

    @property
    def fit(self) -> bool:
        """Whether the kernel seems ready for a cell."""
        return not self.family.idling.lifted and self.usable

    @property
    def usable(self) -> bool:
        """Whether the kernel seems ready for a cell, perhaps after a wake-up of its session."""
        lives = self.death is None and not self._dying
        return lives and self.output.cell is None and not hung_up(self._ends.channel.fileno())

    @property
    def at_rest(self) -> bool:
        """Whether the kernel accepts cells and runs none, as far as the host knows."""
        started = self.ready.done() and self.death is None and not self._dying
        return started and not self.paused and self.output.cell is None and self.channel.state is State.IDLE

    def ask_if_idle(self) -> None:
        """Ask whether the code left anything running. The answer goes to the family.

        Raises:
            OSError: The question could not be recorded for a later host, and was not sent.
        """
        self.channel.send(Idle())

    async def wake(self) -> None:
        """Prepare the sandbox for code (`Idling.wake`), before `begin` and `ask`."""
        await self.family.idling.wake(self.control)

    def begin(self, cell: Cell) -> None:
        """Run a cell. `cell.ended` is set at its end.

        Raises:
            KernelDiedError: The kernel has ended.
            ProtocolError: A cell is already running.
            BusyError: The cell could not be recorded for a later host, and was not sent.
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
            self.write_base(more=True)  # the previous record says that the cell runs
            raise _unrecorded(error) from error

    def attach(self, cell: Cell) -> None:
        """Set the running cell."""
        self.output.attach(cell, self.memory.limit, self._pause)

    def _pause(self, paused: bool) -> None:
        self.channel.listen(not paused)

    def _behind(self) -> bool:
        """Return whether received output must be written before the next read."""
        return self.output.collector.behind

    def _busy(self) -> bool:
        return self.output.cell is not None

    def take_over_output(self, dead: Kernel) -> None:
        """Replace a kernel that died while no cell ran. The next cell shows its last output and says so."""
        if (notice := dead.notice(self.restored)) is None:
            return
        dead.death_reported = True
        self.output.take_over(dead.output, notice)

    def notice(self, restored: Restored | None) -> DeathNotice | None:
        """Return the death notice for the next result; None if the kernel lives, or its last cell's result reports it.

        Args:
            restored: The state that the session restores; None for a fresh kernel.
        """
        if self.death is None or self.death_reported:
            return None
        outcome = STATE_LOST if restored is None else restored.sentence
        recovery: Recovery | None = "restarted" if restored is None else "restored_earlier" if restored.lost else None
        return DeathNotice(f"[cellblock] The kernel died between cells: {self.death.cause}. {outcome}\n", recovery)

    @property
    def state(self) -> State:
        """The state of the protocol."""
        return self.channel.state

    def ask(self, question: Question) -> asyncio.Future[Answer]:
        """Ask a question while no cell runs. The future gets the answer, or `KernelDiedError` if the kernel ends.

        Raises:
            KernelDiedError: The kernel has ended.
            BusyError: The question could not be recorded for a later host, and was not sent.
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
        """Resume paused background code.

        Args:
            anyway: Also if it is unknown whether the code is paused, because an earlier host may have requested the copy.
        """
        if (self.paused or anyway) and self.death is None and self.channel.state is State.IDLE:
            with suppress(OSError):  # cannot be recorded now: the next request resumes the code, too
                self.channel.send(Continue())
                self.paused = False

    async def answered(self, patience: float) -> None:
        """Wait until the kernel has answered another host's question, before which it accepts nothing."""
        if self.channel.state is State.QUERY and self._query is None and self.death is None:
            self._query = self._loop.create_future()
            await asyncio.wait([self._query], timeout=patience)

    def take_changed(self) -> Changed | None:
        """Return the variable changes that its cells reported, once; None if they report none."""
        changed, self._changed = self._changed, None
        return changed

    async def interrupt(self) -> None:
        """Send SIGINT to the kernel's process group. On return, the signal is on its way."""
        await self.control.command(Interrupt())

    async def begun(self, patience: float) -> None:
        """Wait until the worker has read the sent cell, so that an interrupt will hit it."""
        for _ in range(round(patience / _MOMENT)):
            if self.output.cell is None:
                return
            if self.channel.all_read:
                return
            await asyncio.sleep(_MOMENT)

    async def kill_children(self) -> None:
        """Kill every process that the kernel's code started."""
        await self.control.command(KillChildren())

    async def kill(self, why: str | None = None) -> None:
        """Kill every process of the kernel. ``why`` is reported as the cause of death."""
        if self.death is None:
            self._condemned = self._condemned or why
        await self.control.end(self.family.grace(4 * _GRACE if self.family.shared else _GRACE))
        if not self.control.gone.done() and self.origin is not None:
            # The copy never forked, for example because it is stopped. Without it, init ends the unfinished kernel.
            self.family.drop(self.origin)
            await asyncio.wait([self.control.gone], timeout=4 * _GRACE)
        if not self.control.gone.done() and not self.control.quiet.done():
            self.family.kill()
            await asyncio.wait([self.control.gone], timeout=4 * _GRACE)

    async def close(self) -> None:
        """End the kernel: gracefully if it is idle, else, or if it does not exit, by force. Idempotent."""
        await self._closing.finish(self._close)

    async def freeze(self) -> int:
        """Stop all processes of the kernel. Return how many could not be stopped."""
        deadline = self._loop.time() + _FREEZE
        moment = _MOMENT
        for attempt in itertools.count(1):
            left = await self.control.freeze()
            if not left or self._loop.time() >= deadline:
                break
            if attempt % _ATTEMPTS == 0:
                # A thread in vfork waits for the new process to execute its program, and cannot stop before. If the new
                # process was stopped first, both must continue long enough to get there.
                self.control.thaw()
                moment = min(2 * moment, _LONGEST_MOMENT)
                await asyncio.sleep(moment)
            else:
                await asyncio.sleep(_MOMENT)
        return left

    def thaw(self) -> None:
        """Resume the kernel's processes."""
        self.control.thaw()

    def remember(self) -> None:
        """Record that another kernel is about to replace it. Until `forget`, a later host can report its death with a cell.

        Without the record, the result of that cell is lost if the host is killed before delivery.
        """
        if self.death_reported and not self._closing.begun:
            self._remembered = self.recording.replaced()

    async def forget(self) -> None:
        """End the kernel and remove its record: the next cell has begun, or there will be none."""
        self._remembered = False
        await self.close()
        self._on_closed(self)

    async def discard(self) -> None:
        """End the kernel like `close`, but by force: its exit handlers belong to an abandoned state."""
        self._discarded = True
        await self.close()

    async def step_aside(self, ended: Callable[[], object]) -> None:
        """End the kernel like `discard`, but wait only until none of its code can run or have an effect.

        Linux may still be freeing its memory then. A later error is raised by `close`, which tries again.

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
            # Exit handlers cannot be recorded, or may not run now. The kernel is then killed below.
            with suppress(OSError, BusyError):
                await self.wake()
                self.channel.send(Shutdown())
                await asyncio.wait([self.control.gone], timeout=_GRACE)
        if not self.control.gone.done():
            await self.kill(_CLOSED)
        self._die(None)
        if not self._released:  # on a second call, other files may already have the closed descriptors' numbers
            self._released = True
            self.control.close()
            self._ends.close()
            self.recording.close()
        await self.family.leave(self)
        if not self._remembered:
            self._on_closed(self)

    async def started(self, timeout: float) -> None:
        """Wait until the kernel accepts cells.

        Raises:
            LaunchError: The kernel ended before, or took too long.
        """
        began = time.perf_counter()
        await asyncio.wait([self.ready], timeout=timeout)
        if not self.ready.done():
            raise LaunchError(f"the kernel was not ready within {timeout:g} s{self._said()}")
        self.ready.result()
        took = 1000 * (time.perf_counter() - began)
        _log.info("%s: kernel %d ready in %.1f ms", self.wanted.session, self._number, took)

    async def settle(self) -> None:
        """Wait for the exit report of a worker that has ended."""
        if self.death is None and hung_up(self._ends.channel.fileno()):
            await asyncio.wait([self.control.gone], timeout=4 * _GRACE)
        if self._dying:
            await self._heard_out.wait()

    def abandon(self) -> None:
        """Treat the kernel as dead, after all attempts to end it failed."""
        self._die(None)

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
                if not self.output.condemned:
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
                self._attend(message)
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
            case Ready(version=version, lacks=lacks):
                if version != VERSION:
                    self._condemn(f"it speaks version {version} of the wire protocol, and this host version {VERSION}")
                elif not self.ready.done():
                    self.output.lacks = [f"[cellblock] {sentence}" for sentence in lacks]
                    self.ready.set_result(None)

    @property
    def _running(self) -> RunningKernel:
        return RunningKernel(self.wanted, self.control, self.family.packages, self.output.insert)

    def _attend(self, request: Request) -> None:
        """Handle a request of the running cell in the background."""
        cell = self.output.cell
        if cell is None or (isinstance(request, InputRequest) and cell.on_input is None):
            what = "input" if isinstance(request, InputRequest) else "something"
            self._condemn(f"it asked for {what} that was not offered")
            return
        if self.recording.asked(request):
            return  # the answer may come next; if not, `resume_request` answers
        cell.answer(self._pass_on(cell, answers(self._running, cell, request, self.recording.begun)))

    def resume_request(self, request: Request, *, begun: bool, decided: bool) -> None:
        """Handle a request that a cell sent to a killed host.

        Args:
            request: The request.
            begun: Whether its handler had begun.
            decided: Whether the code was told that its command may run.
        """
        cell = self.output.cell
        if cell is None:
            return
        if begun:
            cell.answer(self._pass_on(cell, recovered(self._running, request, decided=decided)))
        else:
            self._attend(request)

    async def _pass_on(self, cell: Cell, answering: AsyncIterator[ToWorker]) -> None:
        try:
            async for answer in answering:
                if self.output.cell is cell and self.channel.state in (State.ASKING, State.BUSY):
                    self.recording.told(answer)
                    self.channel.send(answer)
        except KernelDiedError:
            return  # and the cell with it
        except Exception as error:  # otherwise the code would wait forever
            cell.fail(error)
            self._condemn(f"what it asked for could not be answered: {error}")

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

    # -- for a later host ----------------------------------------------------------------------------------------------

    def write_base(self, output: KernelOutput | None = None, *, more: bool = False) -> None:
        """Record the current state for a later host."""
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
        self._condemn(what)

    def measured(self, used: int, copies: int, excess: str) -> None:
        self.memory.check(used, copies, excess)

    def unblocked(self, message: Unblocked) -> None:
        self.family.idling.unblocked(message)

    def _condemn(self, why: str) -> None:
        """Kill the kernel for a violation."""
        if self._condemned is None and self.death is None:
            self._condemned = why
            self.family.end(self.control)

    def exited(self, status: int | None) -> None:
        """Record the worker's exit. The kernel counts as dead once all of its output was read."""
        if not self._dying:
            self._dying = True
            self.channel.hear_out(lambda: self._condemned is None, functools.partial(self._die, status))

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
        f"this cannot be stored for a later host ({error.strerror}), so nothing was done: free memory, and try again"
    )


def _memory_limit(wanted: KernelSpec) -> int | None:
    """Return the memory limit of all of a kernel's processes in bytes, if it is enforced."""
    return wanted.policy.resources.memory if wanted.tier.ours else None
