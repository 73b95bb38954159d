"""Kernels and their copies, forked from one first kernel, in one init and one sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cellblock.errors import BusyError, CheckpointError, KernelDiedError, LaunchError, ProtocolError
from cellblock.host.closing import Closing
from cellblock.host.launch.launcher import Ends, Launcher, connect
from cellblock.walls.sandbox.cgroups import Group
from cellblock.wire.control import Listener, Unblocked
from cellblock.wire.copies import FROM_FAMILY, Copied, Drop, Gone, Keep, Resume, ToFamily
from cellblock.wire.datagrams import MAX_CONTROL, encode_control
from cellblock.wire.fields import MAX_NUMBER
from cellblock.wire.messages import Park, Parked

if TYPE_CHECKING:
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.launch.control import Control

Ask: TypeAlias = Callable[[Park], Awaitable[object]]
"""Sends a question to an idle kernel, and returns its `Parked`."""

_PATIENCE = 30.0  # seconds for a copy to report that it runs: a busy machine may not run it for several
_GRACE = 2.0  # seconds for init to end
_BRANCHED = 30.0
"""Seconds for an init of several sessions' kernels: killing it would end all of them. It may have hundreds to end at once."""
_MOMENT, _MOMENTS = 0.001, 500  # interval and number of attempts to remove a control group

QUIET = 2.0
"""Seconds after the last cell, question or program until placeholders are removed"""

_LONGEST = 60.0
"""Seconds between two attempts, while something that the code has left running prevents it"""


class Copy:
    """A parked copy of a kernel. It uses no CPU time, and memory only for pages changed since.

    Attributes:
        number: Its number for init.
        pending: Whether its code left tasks or timers, which continue in each kernel created from it.
        ran: Whether something that the last cell left may have run after it, even if it has ended.
        gone: Done when it has ended, or was dropped.
    """

    def __init__(self, family: Family, number: int) -> None:
        self.family = family
        self.number = number
        self.pending = False
        self.ran = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()


@dataclass(frozen=True, kw_only=True, slots=True)
class Anew:
    """The differences between a kernel and the copy from which it is created.

    Attributes:
        env: Changed environment variables.
        listeners: Listeners that init opens, by name.
        stay_in: The directory to return to after each cell; None to keep changes of directory.
        seed: Seed of the random generators; None for a new seed. With `same_random_state`, it seeds only generators without a
            state.
        same_random_state: Whether the generators continue from the copy's random state.
        to_inspect: Whether the kernel is only inspected, so that no background code continues.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    listeners: Mapping[str, Listener] = field(default_factory=dict)
    stay_in: str | None = None
    seed: int | None = None
    same_random_state: bool = True
    to_inspect: bool = False


class Refusal(NamedTuple):
    """A kernel's refusal to be copied.

    Attributes:
        reason: Why, for people.
        pending: Whether code runs between cells.
    """

    reason: str
    pending: bool


class Idling:
    """Tracks whether the kernels that share one init are idle.

    A kernel that falsely reports to be idle only harms itself: init makes the workspace read-only for it.

    Attributes:
        lifted: Whether the placeholders may be removed, so that `wake` must precede any code.
    """

    def __init__(self, ask: Callable[[], Collection[Control]]) -> None:
        """Start with placeholders.

        Args:
            ask: Asks all kernels whether their code left anything running, if none runs a cell. Returns one connection to init
                for each kernel, or none if something runs. The answers go to `answered`.
        """
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._touched = self._asked = self._loop.time()
        self._pause = QUIET
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: set[Control] = set()
        self._useful = True
        self.lifted = False

    def touch(self) -> None:
        """Record that something of the session runs, or has just ended."""
        self._touched = self._loop.time()
        self._pause = QUIET
        if self._timer is None and self._useful:
            self._arm(QUIET)

    def take_over(self) -> None:
        """Record that another host may have had the placeholders removed."""
        self.lifted = True

    def stop(self) -> None:
        """Stop the timer, because there are no kernels."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wake(self, control: Control) -> None:
        """Have removed placeholders restored. Code of the session may run when this returns.

        Raises:
            BusyError: The placeholders cannot be restored now, so nothing may run.
        """
        self.touch()
        if not self.lifted:
            return
        if error := await control.block():
            raise BusyError(f"the session cannot continue now, because its protected names cannot be blocked again: {error}")
        self.lifted = False

    def answered(self, control: Control, *, pending: bool) -> None:
        """Handle a kernel's report whether its code left anything running."""
        if control not in self._waiting:
            return  # no one asked
        self._waiting.discard(control)
        if self._touched > self._asked:
            return  # something has begun meanwhile
        if pending:
            self._try_later()
        elif not self._waiting:
            self.lifted = True
            control.unblock()

    def unblocked(self, message: Unblocked) -> None:
        """Handle init's answer."""
        self._useful = message.useful
        if not message.done:
            self.lifted = False
            if message.useful:
                self._try_later()

    def _try_later(self) -> None:
        self._pause = min(2 * self._pause, _LONGEST)
        if self._timer is None:
            self._arm(self._pause)

    def _arm(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.lifted:
            return
        if (left := self._touched + self._pause - self._loop.time()) > 0:
            self._arm(left)
            return
        self._asked = self._loop.time()
        self._waiting = {*self._ask()}
        if not self._waiting:
            self._arm(QUIET)


class Family:
    """Kernels and copies that share an init. It lives until the last of them has ended.

    Attributes:
        launcher: The launcher of the first kernel, and so of init.
        number: That kernel's number, from the launcher.
        group: The control group of all processes, if any.
        ports: Number of ports assigned to listeners of later sessions.
        awaited: Number of a killed host's kernels still to be taken over or ended.
        programs: Number of background programs, which outlive kernels.
        idling: Has the placeholders removed while nothing runs.
        sealed: Whether the network was restricted permanently. Another session could reach more, so none may be created.
    """

    def __init__(
        self,
        launcher: Launcher,
        number: int,
        group: Group | None,
        on_changed: Callable[[Family], None],
        on_closed: Callable[[Family], None],
    ) -> None:
        """Start without kernels.

        Args:
            launcher: Starts the first kernel.
            number: Its number, from the launcher.
            group: The control group of all processes, if any.
            on_changed: Called before the first copy is created, and when a port was assigned.
            on_closed: Called at the end of an init that had copies.
        """
        self._on_changed = on_changed
        self._on_closed = on_closed
        self.launcher = launcher
        self.number = number
        self.group = group
        self._loop = asyncio.get_running_loop()
        self._kernels: set[Kernel] = set()
        self._copies: dict[int, Copy] = {}
        self._expected: dict[int, asyncio.Future[Copy | None]] = {}
        self._connection: socket.socket | None = None
        self._unsent: deque[bytes] = deque()
        self._gone: asyncio.Future[None] | None = None
        self._closing = Closing()
        self.idling = Idling(self._ask_if_idle)
        self.ports = 0
        self.awaited = 0
        self.programs = 0
        self.sealed = False

    @property
    def shared(self) -> bool:
        """Whether there are, or were, copies or other kernels. Init then outlives each kernel."""
        return self._connection is not None or len(self._kernels) > 1

    @property
    def branched(self) -> bool:
        """Whether kernels of several sessions run now."""
        return len(self._kernels) > 1

    @property
    def packages(self) -> str | None:
        """The directory for packages of its sessions, if any."""
        return self.launcher.packages(self.number)

    def explain(self, said: str, status: int | None, cause: str) -> LaunchError:
        """Explain why a kernel ended before it was ready (`Launcher.explain`)."""
        return self.launcher.explain(self.number, said, status, cause)

    def seal(self) -> None:
        """Reject further sessions in this sandbox, because its network was restricted permanently."""
        self.sealed = True

    def kill(self) -> None:
        """Kill init, and so every kernel and copy."""
        self.launcher.kill(self.number)

    def end(self, control: Control) -> None:
        """Kill one kernel at once."""
        if not self.shared:
            self.kill()
        elif control.hang_up():
            self._loop.call_later(self.grace(_GRACE), lambda: None if control.gone.done() else self.kill())

    def grace(self, seconds: float) -> float:
        """Return how many seconds to wait for init, given the time for one session."""
        return _BRANCHED if self.branched else seconds

    def next_port(self, first: int) -> int:
        """Return a port for a listener of another session. All share one network, where each port has one listener."""
        self.ports += 1
        self._on_changed(self)
        return first + self.ports

    def add(self, kernel: Kernel) -> None:
        self.awaited = max(self.awaited - 1, 0)
        self._kernels.add(kernel)
        self.idling.touch()

    def _ask_if_idle(self) -> list[Control]:
        """Ask all kernels whether they are idle (`Idling`)."""
        if self.programs or not all(kernel.at_rest for kernel in self._kernels):
            return []
        try:
            for kernel in self._kernels:
                kernel.ask_if_idle()
        except OSError:  # cannot be recorded for a later host: the placeholders stay
            return []
        return [kernel.control for kernel in self._kernels]

    def stop_counting(self, kernel: Kernel) -> None:
        """Stop counting a kernel that is ending and no longer has any effect. `leave` must follow."""
        self._kernels.discard(kernel)

    async def leave(self, kernel: Kernel) -> None:
        """Remove an ended kernel. Init ends with the last one, if there is no copy."""
        self._kernels.discard(kernel)
        if not self._kernels:
            self.idling.stop()
        if not self.shared:
            await self._dissolve()
        await self.settle()

    def execute(self, control: Control, descriptors: Sequence[int], *, opened: bool) -> None:
        """Start a program in a kernel's environment. `program_ended` must follow when all its processes have ended.

        Args:
            control: The kernel's connection to init.
            descriptors: As for `Control.execute`.
            opened: As for `Control.execute`.

        Raises:
            BlockingIOError: As for `Control.execute`.
            KernelDiedError: The kernel has ended.
        """
        self._connect(control)  # the open connection keeps init alive
        control.execute(descriptors, opened=opened)
        self.programs += 1

    def program_ended(self) -> None:
        """Handle the end of a program and all its child processes."""
        self.programs -= 1
        if self._kernels:
            self.idling.touch()
        if self._empty:
            self._closing.begin(self._close)

    # -- copies --------------------------------------------------------------------------------------------------------

    async def copy(self, control: Control, ask: Ask, *, again: bool = False) -> Copy | Refusal | None:
        """Copy an idle kernel.

        Args:
            control: The kernel's connection to init.
            ask: Sends a question to the kernel.
            again: Whether to skip the copy if nothing ran since the last one.

        Returns:
            The running copy, the kernel's refusal, or None if the copy was skipped.

        Raises:
            CheckpointError: The copy does not answer.
            KernelDiedError: The kernel has ended.
        """
        self._connect(control)
        number = secrets.randbelow(MAX_NUMBER)
        copied = self._expected[number] = self._loop.create_future()
        copy: Copy | None = None
        try:
            answer = await ask(Park(number, again))
            if isinstance(answer, Parked) and answer.refusal is not None:
                return Refusal(answer.refusal, answer.pending)
            if again and isinstance(answer, Parked) and answer.same:
                return None
            await asyncio.wait([copied, control.gone], timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if not copied.done():
                if control.gone.done():  # init reports this last, after ending the unfinished copy
                    raise KernelDiedError("the kernel died while it was copied")
                raise CheckpointError(
                    f"the copy of the kernel did not answer within {_PATIENCE:g} s, and was killed. The session continues: "
                    "try again when the machine is less busy"
                )
            copy = copied.result()
            if copy is None:
                raise CheckpointError(
                    "the copy of the kernel was killed before it was ready, perhaps because memory is short. The session "
                    "continues: free memory, then try again"
                )
            if isinstance(answer, Parked):
                copy.pending, copy.ran = answer.pending, answer.ran
        finally:
            del self._expected[number]
            if copy is None:  # it may still arrive, or exist without a user
                self._copies.pop(number, None)
                self._tell(Drop(number))
        return copy

    def resume(self, copy: Copy, how: Anew) -> Ends:
        """Create a kernel from a copy, which is unchanged.

        Args:
            copy: A copy of this family.
            how: The differences from the copied kernel.

        Returns:
            The host's ends of the new kernel's connections. The kernel reports when it is ready.

        Raises:
            CheckpointError: The copy has ended.
            OSError: The connections cannot be created.
        """
        if copy.gone.done() or self._connection is None:
            raise CheckpointError(
                "the process with the checkpoint has ended, perhaps because memory was short: restore another checkpoint"
            )
        connection = self._connection
        rest = how.stay_in, how.seed, how.same_random_state, how.to_inspect
        message = Resume(copy.number, how.env, how.listeners, *rest)

        def start(descriptors: Sequence[int]) -> None:
            socket.send_fds(connection, [encode_control(message)], descriptors)

        return connect(None, None, start)

    def drop_soon(self, copy: Copy) -> None:
        """End a copy without an owner, and init with the last one. Finalizers call this from any thread."""
        if not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was just closed
                self._loop.call_soon_threadsafe(self.drop, copy)

    def drop(self, copy: Copy) -> None:
        """End a copy. Init ends with the last one, if there is no kernel."""
        if self._copies.pop(copy.number, None) is not None:
            copy.gone.set_result(None)
            self._tell(Drop(copy.number))
            if self._empty:
                self._closing.begin(self._close)

    # -- the connection ------------------------------------------------------------------------------------------------

    def _connect(self, control: Control) -> None:
        if self._connection is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                control.connect(theirs)
            except BaseException:  # nothing else closes it
                ours.close()
                raise
        self._listen(ours)
        self._on_changed(self)

    def _listen(self, connection: socket.socket) -> None:
        self._connection, self._gone = connection, self._loop.create_future()
        self._loop.add_reader(connection.fileno(), self._on_readable)

    def go_on(self, connection: socket.socket, copies: Iterable[int]) -> dict[int, Copy]:
        """Take over a killed host's copies. End all other copies of init, whose purpose is unknown.

        Args:
            connection: That host's connection.
            copies: The numbers of the copies.

        Returns:
            The copies, some of which may have ended.
        """
        self._copies = {number: Copy(self, number) for number in copies}
        self._listen(connection)
        self._tell(Keep((*self._copies,)))
        return {**self._copies}

    @property
    def connection(self) -> socket.socket | None:
        """The connection for copies, for a custodian; None if there were no copies."""
        return self._connection

    def _tell(self, message: ToFamily) -> None:
        if self._connection is None:
            return
        self._unsent.append(encode_control(message))
        self._flush()

    def _flush(self) -> None:
        """Send queued messages to init as soon as there is room."""
        assert self._connection is not None
        try:
            while self._unsent:
                self._connection.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._connection.fileno(), self._flush)
            return
        except OSError:
            self._unsent.clear()  # the reader is about to see the end of the connection
        self._loop.remove_writer(self._connection.fileno())

    def _on_readable(self) -> None:
        assert self._connection is not None
        try:
            data = self._connection.recv(MAX_CONTROL)
            message = FROM_FAMILY.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            message = None
        match message:
            case Copied(number) if number in self._expected and not self._expected[number].done():
                copy = self._copies[number] = Copy(self, number)
                self._expected[number].set_result(copy)
            case Copied(number):
                self._tell(Drop(number))  # from a kernel that was not asked, or whose request timed out
            case Gone(number):
                if number in self._expected and not self._expected[number].done():
                    self._expected[number].set_result(None)
                self._lose(number)
            case None:
                self._loop.remove_reader(self._connection.fileno())
                for number in [*self._copies]:
                    self._lose(number)
                assert self._gone is not None
                self._gone.set_result(None)

    def _lose(self, number: int) -> None:
        if (copy := self._copies.pop(number, None)) is not None:
            copy.gone.set_result(None)

    async def settle(self) -> None:
        """End init, if there is no kernel and no copy."""
        if self._empty:
            await self._closing.finish(self._close)

    @property
    def _empty(self) -> bool:
        """Whether only init is left."""
        return self._connection is not None and not (self._kernels or self._copies or self.awaited or self.programs)

    async def close(self) -> None:
        """End all copies, and then init once there is no kernel. Idempotent."""
        for copy in [*self._copies.values()]:
            self.drop(copy)
        await self.settle()

    async def _close(self) -> None:
        assert self._connection is not None
        assert self._gone is not None
        if not self._gone.done():
            with contextlib.suppress(OSError):  # init has already ended
                self._connection.shutdown(socket.SHUT_WR)
            await asyncio.wait([self._gone], timeout=_GRACE)
        if not self._gone.done():
            self.kill()
            await asyncio.wait([self._gone], timeout=_GRACE)
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
        self._unsent.clear()
        self._connection.close()
        self._connection = None
        await self._dissolve()
        self._on_closed(self)

    async def _dissolve(self) -> None:
        """Remove the control group once it has no processes."""
        group = self.group
        for _ in range(_MOMENTS if group is not None else 0):
            if group is None or group.remove():
                return
            await asyncio.sleep(_MOMENT)
        # A process in it cannot be killed now. The host removes the group when it closes, or a later host does.
