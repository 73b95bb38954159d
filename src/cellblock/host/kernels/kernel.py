"""One kernel, seen from the host: what it is asked and what it says, from start to end. All that it sends is hostile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping

from cellblock.errors import KernelDiedError, LaunchError, SandboxError
from cellblock.host.checkpoints.checkpoint import Restored
from cellblock.host.closing import Closing
from cellblock.host.descriptors import hung_up
from cellblock.host.kernels.cell import Cell, OnInput
from cellblock.host.kernels.cell_result import STATE_LOST
from cellblock.host.kernels.channel import Channel
from cellblock.host.kernels.exit_status import Death, describe_status
from cellblock.host.kernels.family import Family
from cellblock.host.kernels.memory import MemoryWatch
from cellblock.host.kernels.recording import Extra, Recording, read_trusted, sent_message
from cellblock.host.kernels.requests import answers, recovered
from cellblock.host.kernels.tape import Kind, piece
from cellblock.host.launch.control import Control
from cellblock.host.launch.failures import refused
from cellblock.host.launch.kernel_spec import KernelSpec
from cellblock.host.launch.launcher import Ends
from cellblock.host.output.collect import Collector
from cellblock.model import Recovery, Status, StreamName
from cellblock.wire.control import Interrupt, KillChildren
from cellblock.wire.frames import VERSION
from cellblock.wire.messages import (
    Answer,
    Changed,
    Clear,
    Comm,
    Command,
    Completed,
    Display,
    Execute,
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
_MOMENT = 0.001
_TURN = 0.005  # seconds of one turn of the loop for what another host has taken already
_GRACE = 0.5  # seconds for exit handlers, and for init to end what is left


class Kernel:
    """One process of a session's interpreter.

    Attributes:
        family: The kernels and copies that share its init.
        ready: Done when it takes cells.
        wanted: What it was asked to be.
        control: Its init, for what is done in the session and not by the kernel.
        memory: How much memory its processes may use, and who watches that.
        output: Takes what its processes write, if that is somebody else's output: of the kernel that this one was made for.
        held: Done when the custodian holds it, if one is to.
        death_reported: Whether some result has said that it died.
        death: Why it ended, once it has.
        of_copy: Whether it was made of a copy of another one, with its variables.
        restored: The state that it goes on from, if it is in the place of one that died.
    """

    def __init__(
        self,
        family: Family,
        number: int,
        ends: Ends,
        wanted: KernelSpec,
        on_closed: Callable[[Kernel], object],
        recording: Recording | None = None,
        *,
        listen: bool = True,
    ) -> None:
        """Take a kernel whose processes are there, or about to be.

        Args:
            family: The kernels that share its init.
            number: What the host calls it.
            ends: The host's ends of its connections.
            wanted: What it was asked to be.
            on_closed: Told when it has ended.
            recording: Its tape, if another host is to go on with it when this one is killed.
            listen: Whether to listen to it; if not, `recover` does.
        """
        self._loop = asyncio.get_running_loop()
        self.family = family
        self._number = number
        self._ends = ends
        self._on_closed = on_closed
        self.wanted = wanted
        self._recording = recording
        tape = None if recording is None else recording.tape
        self._channel = Channel(ends, self._take, self._add_text, self._condemn, tape)
        self._collector = Collector(wanted.limits, wanted.spill_to)
        self._channel.behind = lambda: self._collector.behind
        self._cell: Cell | None = None
        self._query: asyncio.Future[Answer] | None = None
        self._changed: Changed | None = None
        self._condemned: str | None = None
        self._closing = Closing()
        self._discarded = False
        self._in_place_of_dead = False
        self.output: Callable[[StreamName, bytes], None] | None = None
        self._dying = False
        self._heard_out = asyncio.Event()
        self.held: asyncio.Future[None] | None = None
        self.death_reported = False
        self.count = 0
        self._cells = 0
        self.death: Death | None = None
        self.restored: Restored | None = None
        self.of_copy = False
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.control = Control(ends.control)
        self.control.on_exit = self._on_death
        self.memory = MemoryWatch(wanted.memory, ends.group, self.control, lambda: self._cell is not None, self._condemn)
        self.control.takers = dict(wanted.takers)
        self.control.on_violation = self._condemn
        if recording is not None:
            self.control.before_exit = recording.exited
            self._channel.on_long = self._write_long
        family.add(self)
        if listen:
            self._write_base()
            self.control.read()
            self._channel.listen(True)

    # -- asking --------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> str:
        """Where its next cell begins. No other cell of this or another kernel has the same, also if hosts are killed."""
        return f"{self._number}/{self._cells}"

    @property
    def fit(self) -> bool:
        """Whether it would take a cell now, as far as can be seen."""
        return self.death is None and not self._dying and self._cell is None and not hung_up(self._ends.channel.fileno())

    def begin(self, cell: Cell) -> None:
        """Run a cell; `cell.ended` tells when it has ended.

        Raises:
            KernelDiedError: The kernel has ended.
            ProtocolError: It runs a cell already.
        """
        self._check_alive()
        self._attach(cell)
        if cell.streaming:
            for shown, stream in self._collector.so_far():
                cell.emit(shown, stream)
        self.memory.look_soon()
        self._cells += 1
        self._write_base(more=True)
        self._channel.send(Execute(cell.code, stdin=cell.on_input is not None, silent=cell.silent, parent=cell.parent))

    def _attach(self, cell: Cell) -> None:
        # What background work wrote since the last cell has not been shown to anybody yet: it comes first.
        cell.attach(
            self._collector,
            memory=self.memory.limit,
            after_death=self._in_place_of_dead,
            pause=lambda paused: self._channel.listen(not paused),
        )
        self._cell = cell

    def take_over_output(self, dead: Kernel) -> None:
        """Take the place of a kernel that died while no cell ran: the next cell shows its last words, and says so."""
        if dead.death_reported or dead.death is None:
            return
        dead.death_reported = True
        ours, self._collector = self._collector, dead._collector  # of the same class
        outcome = STATE_LOST if self.restored is None else self.restored.sentence
        note = f"[cellblock] The kernel died between cells: {dead.death.cause}. {outcome}\n"
        self._collector.add_text("stderr", note.encode())
        for item in ours.items():
            self._collector.add_text(item.name or "stdout", (item.text or "").encode())
        self._in_place_of_dead = self.restored is None or self.restored.lost > 0

    @property
    def state(self) -> State:
        """What it is doing."""
        return self._channel.state

    def ask(self, question: Question) -> asyncio.Future[Answer]:
        """Have something worked out while no cell runs; the future has it, or the `KernelDiedError` of a kernel that ends.

        Raises:
            KernelDiedError: The kernel has ended.
        """
        self._check_alive()
        self._query = self._loop.create_future()
        self._channel.send(question)
        return self._query

    def take_changed(self) -> Changed | None:
        """Return what its cells have said to have changed, once; None if they were not asked to."""
        changed, self._changed = self._changed, None
        return changed

    async def interrupt(self) -> None:
        """Send SIGINT to the kernel's process group. When this returns the signal is on its way."""
        await self.control.command(Interrupt())

    async def begun(self, patience: float) -> None:
        """Wait until the worker has read the cell that it was sent; an interrupt will then hit it."""
        for _ in range(round(patience / _MOMENT)):
            if self._cell is None:
                return
            if self._channel.all_read:
                return
            await asyncio.sleep(_MOMENT)

    async def kill_children(self) -> None:
        """Kill every process that code of this kernel has started."""
        await self.control.command(KillChildren())

    async def kill(self) -> None:
        """End every process of the kernel, whatever they are doing."""
        # Killing init kills its other kernels and copies as well, so that it gets more time if there are any.
        await self.control.end(4 * _GRACE if self.family.shared else _GRACE)
        if not self.control.gone.done():
            self.family.kill()
            await asyncio.wait([self.control.gone], timeout=4 * _GRACE)

    async def close(self) -> None:
        """End the kernel: in good order if it is idle, by force if it is not or does not go. Closing twice is fine."""
        await self._closing.finish(self._close)

    async def discard(self) -> None:
        """End the kernel by force, as `close` does otherwise: what it would do at its end belongs to a state that was left."""
        self._discarded = True
        await self.close()

    async def _close(self) -> None:
        if not self._discarded and self.death is None and self._channel.state is State.IDLE:
            self._condemned = "it was closed"
            self._channel.send(Shutdown())
            await asyncio.wait([self.control.gone], timeout=_GRACE)
        if not self.control.gone.done():
            await self.kill()
        self._die(None)
        self.control.close()
        self._ends.close()
        if self._recording is not None:
            self._recording.tape.close()
        await self.family.leave(self)
        self._on_closed(self)

    def limit_memory(self) -> None:
        """Set the limits of the control group that its processes are in, if they have one.

        Raises:
            SandboxError: They cannot be set.
        """
        try:
            if self._ends.group is not None:
                self._ends.group.limit(self.wanted.policy.resources)
        except OSError as error:
            raise SandboxError(f"the memory of a kernel cannot be limited: {error}") from error

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
        """Where the worker is gone and nobody has told us yet, wait until somebody has."""
        if self.death is None and hung_up(self._ends.channel.fileno()):
            await asyncio.wait([self.control.gone], timeout=4 * _GRACE)
        if self._dying:
            await self._heard_out.wait()

    def abandon(self) -> None:
        """Take the kernel for dead: nothing that was done to end it has worked."""
        self._die(None)

    @property
    def packages(self) -> str | None:
        """Where the packages of its session are to lie, where its sandbox has a directory for them."""
        return self.family.packages

    def _check_alive(self) -> None:
        if self.death is not None:
            raise KernelDiedError(f"the kernel died: {self.death.cause}")

    def note(self, line: str) -> None:
        """Tell the reader of the running cell, or of the next one, something that the host knows."""
        self._take_extra(Extra(text=f"{line}\n".encode(), ours=True))

    def tell(self, line: str) -> None:
        """Show a line to the reader of the running cell's stream; it is not in the result."""
        self._take_extra(Extra(text=f"{line}\n".encode(), ours=True, kept=False))

    def show(self, data: Mapping[str, bytes]) -> None:
        """Show a MIME bundle from elsewhere to the reader of the running cell, or of the next one."""
        self._take_extra(Extra(shown=dict(data)))

    def add_text(self, name: StreamName, text: bytes) -> None:
        """Take text from elsewhere for the output of the running cell, or of the next one."""
        self._take_extra(Extra(name, text))

    def _take_extra(self, extra: Extra) -> None:
        if self._recording is not None:
            self._recording.write_extra(extra)
        if extra.shown is not None:
            self._take(Display("display_data", extra.shown))
        elif extra.kept:
            self._add_text(extra.name, extra.text, ours=extra.ours)
        elif self._cell is not None:
            self._cell.emit(extra.text.decode("utf-8", "replace"), extra.name, ours=extra.ours)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _take(self, message: ToHost) -> None:
        match message:
            case Stream(name=name, text=text, behind=behind):
                if behind:
                    self._channel.catch_up()
                self._add_text(name, text)
            case Reply():
                self.count = message.execution_count
                self._channel.drain_pipes()
                self._end_cell(message)
            case Display():
                if message.behind:
                    self._channel.catch_up()
                bundle = self._collector.add_display(message)
                if bundle is not None and self._cell is not None:
                    self._cell.show(bundle, message.kind)
                while self._collector.unsaid:
                    self._add_text("stderr", f"{self._collector.unsaid.pop(0)}\n".encode(), ours=True)
            case Part(mime=mime, data=data):
                self._collector.add_part(mime, data)
            case Clear(wait=wait):
                self._collector.clear(wait)
                if self._cell is not None:
                    self._cell.clear(wait)
            case Comm():
                if self._cell is not None:
                    self._cell.pass_on(message)
            case InputRequest() | Install() | Command():
                self._attend(message)
            case Changed() if self._cell is not None:
                self._changed = message if self._changed is None else self._changed.then(message)
            case Changed() | Completed() | Inspected() | Parked():
                if self._query is not None and not self._query.done():
                    self._query.set_result(message)
            case Ready(version=version):
                if version != VERSION:
                    self._condemn(f"it speaks version {version} of the wire, and this host {VERSION}")
                elif not self.ready.done():
                    self.ready.set_result(None)

    def _add_text(self, name: StreamName, text: bytes, *, ours: bool = False) -> None:
        if self.output is not None:
            self.output(name, text)
            return
        self._collector.add_text(name, text)
        if self._cell is not None and self._cell.streaming:
            self._cell.emit(text.decode("utf-8", "replace"), name, ours=ours)

    def _attend(self, question: InputRequest | Install | Command) -> None:
        """Answer what the cell asks, while everything else goes on. It waits for one thing at a time."""
        cell = self._cell
        if cell is None or (isinstance(question, InputRequest) and cell.on_input is None):
            what = "input" if isinstance(question, InputRequest) else "something"
            self._condemn(f"it asked for {what} that was not offered")
            return
        if self._recording is not None:
            self._recording.asked(question)
            if self._recording.replaying:
                return  # the answer may come next; if not, `recover` answers
        cell.answer(self._pass_on(cell, answers(self, cell, question)))

    async def _pass_on(self, cell: Cell, answering: AsyncIterator[ToWorker]) -> None:
        try:
            async for answer in answering:
                if self._cell is cell and self._channel.state in (State.ASKING, State.BUSY):
                    self._answer(answer)
        except KernelDiedError:
            return  # and the cell with it
        except Exception as error:  # the code would wait forever
            cell.fail(error)
            self._condemn(f"what it asked for could not be answered: {error}")

    def _answer(self, answer: ToWorker) -> None:
        if self._recording is not None:
            self._recording.told(answer)
        self._channel.send(answer)

    def request_begins(self) -> None:
        """Take note that what the cell has asked for begins now, and must not begin again."""
        if self._recording is not None:
            self._recording.begun()

    def stopping(self, reason: Status | None, means: Recovery) -> None:
        """Take note of the means by which the running cell is being stopped."""
        self._collector.hurry()
        if self._recording is not None:
            self._recording.stopping(reason, means)

    def _end_cell(self, ending: Reply | Death) -> None:
        cell, self._cell = self._cell, None
        if cell is None:
            return
        self.death_reported = isinstance(ending, Death)
        self._in_place_of_dead = self._in_place_of_dead and cell.silent  # somebody has been told, or nobody yet
        self._collector = Collector(self.wanted.limits, self.wanted.spill_to)
        cell.finish(ending)

    # -- another host's kernel -----------------------------------------------------------------------------------------

    def _write_base(self, *, more: bool = False) -> None:
        if self._recording is not None:
            self._recording.standing.count, self._recording.standing.cells = self.count, self._cells
            cell = None if self._cell is None else self._cell.saved()
            self._recording.base(self._channel, self._collector, cell, after_death=self._in_place_of_dead, more=more)

    def _write_long(self) -> None:
        if self._recording is not None and self._recording.long and not self._recording.replaying:
            self._write_base()

    async def recover(self, on_input: OnInput | None) -> Cell | None:
        """Go on with a kernel of a host that was killed, as if it had been this host's all the time.

        Args:
            on_input: Answers `input()` of a cell that had somebody to answer it.

        Returns:
            The last cell, whether or not it has ended; None if there was none.

        Raises:
            ValueError, ProtocolError: The tape makes no sense.
        """
        recording = self._recording
        assert recording is not None
        records = recording.recover(self._channel, self.wanted.spill_to)
        saved = recording.standing
        self._collector = saved.collector or self._collector
        self._in_place_of_dead, self.count, self._cells = saved.after_death, saved.count, saved.cells
        cell = None if saved.cell is None else Cell.restored(saved.cell, on_input)
        last = cell if self._channel.state in (State.BUSY, State.ASKING) else None
        if last is not None:
            self._attach(last)
        if self._channel.state is not State.STARTING:
            self.ready.set_result(None)
        exited: list[int] = []
        for record in records:
            await self._replay_until(record.messages)
            match record.kind:
                case Kind.SENT:
                    message = sent_message(record)
                    self._channel.replay_sent(message)
                    recording.told(message)
                    if isinstance(message, Execute) and cell is not None:
                        last = cell
                        self._attach(cell)
                case Kind.PIECE:
                    self._channel.replay_piece(*piece(record.content))
                case Kind.EXTRA:
                    self._take_extra(read_trusted(record))
                case Kind.STOP if last is not None:
                    last.reason, last.recovery = read_trusted(record)
                case Kind.BEGUN:
                    recording.standing.begun = True
                case Kind.EXITED:
                    exited.append(int(record.content))
        self._go_live(recording, exited)
        return last

    async def _replay_until(self, messages: int) -> None:
        until = self._loop.time() + _TURN
        while self._channel.replay(messages):
            if self._loop.time() >= until:
                await asyncio.sleep(0)
                until = self._loop.time() + _TURN

    def _go_live(self, recording: Recording, exited: list[int]) -> None:
        recording.replaying = False
        self._channel.go_live()
        if exited:
            self._on_death(exited[-1])
        self.control.read()
        self.memory.look_soon()
        question = recording.standing.question
        if self._cell is not None and question is not None:
            cell = self._cell
            if recording.standing.begun:
                cell.answer(self._pass_on(cell, recovered(self, question, decided=recording.standing.decided)))
            else:
                self._attend(question)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _condemn(self, why: str) -> None:
        """Kill the kernel for what it did."""
        if self._condemned is None and self.death is None:
            self._condemned = why
            self.family.end(self.control)

    def _on_death(self, status: int | None) -> None:
        if not self._dying:
            self._dying = True
            self._channel.hear_out(lambda: self._condemned is None, lambda: self._die(status))

    def _die(self, status: int | None) -> None:
        if self.death is not None:
            return
        self.memory.stop()
        self._channel.end()
        cause = self.memory.cause_of_death() or self._condemned or describe_status(status)
        self.death = Death(cause)
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
        self._channel.drain_pipes()
        return "".join(item.text or "" for item in self._collector.items())[-4000:]
