"""The host's connection to a session's init: requests, answers and events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cellblock.errors import KernelDiedError, ProtocolError
from cellblock.host.descriptors import accepts, is_in_other_network, receive_control
from cellblock.wire.control import (
    FROM_INIT,
    Block,
    Blocked,
    Command,
    Connect,
    Dial,
    Dialled,
    Done,
    Exec,
    Exited,
    Freeze,
    FromInit,
    Frozen,
    HttpServer,
    Interrupt,
    Keep,
    KillChildren,
    Listen,
    ListPorts,
    Measure,
    Memory,
    OpenPorts,
    Quiet,
    Ran,
    Refused,
    Run,
    Stop,
    Thaw,
    Unblock,
    Unblocked,
)
from cellblock.wire.datagrams import MAX_CONTROL, encode_control

_PATIENCE = 0.5  # seconds for init to carry out a command
_PATIENCE_TO_BLOCK = 5.0  # it may wait for another program that locks the directory


class ControlObserver:
    """A null observer of init's reports."""

    def exited(self, status: int | None) -> None:
        """Handle the end of the worker or of init. `status` is the worker's wait status, if known."""

    def measured(self, used: int, copies: int, excess: str) -> None:
        """Handle the answer to `Control.measure` (`Memory`)."""

    def unblocked(self, message: Unblocked) -> None:
        """Handle the answer to `Control.unblock`."""

    def violated(self, what: str) -> None:
        """Handle a violation by init, or by a process that pretends to be init."""


class Control:
    """One session's control socket.

    Attributes:
        gone: Done when init and all its child processes have ended.
        quiet: Done when, after `hang_up`, the kernel no longer has an effect, although it may not have ended.
        refused: Why the session could not be created; empty if it was.
        takers: Callbacks by name for listeners that init opens before the session runs any code; each is called once.
    """

    def __init__(
        self,
        sock: socket.socket,
        observer: ControlObserver | None = None,
        takers: Mapping[str, Callable[[socket.socket], None]] | None = None,
        before_exit: Callable[[int], None] | None = None,
    ) -> None:
        """Store the arguments. Reading starts with `read`.

        Args:
            sock: The socket, which the caller still owns.
            observer: Observes init's reports.
            takers: As for the attribute.
            before_exit: Called with the worker's wait status before it is taken from the socket.
        """
        self._observer = observer or ControlObserver()
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        # Init answers in order. A late answer must not count for the next command.
        self._done: deque[asyncio.Future[None]] = deque()
        self._frozen: deque[asyncio.Future[int]] = deque()
        self._blocked: deque[asyncio.Future[str]] = deque()
        self._ran: asyncio.Future[int] | None = None
        self._runs = 0
        self._listened: asyncio.Future[tuple[socket.socket, int]] | None = None
        self._dials: dict[int, asyncio.Future[socket.socket | int]] = {}
        self._numbers = itertools.count(1)
        self._listed: deque[asyncio.Future[OpenPorts]] = deque()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.quiet: asyncio.Future[None] = self._loop.create_future()
        self.refused: Refused | None = None
        self.takers = dict(takers or {})
        self._before_exit = before_exit

    def read(self) -> None:
        """Start reading messages from init."""
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    async def command(self, command: Interrupt | KillChildren | Stop) -> None:
        """Send a command that init carries out at once. On return, it is done, or init has ended."""
        if self.gone.done():
            return
        try:
            self._sock.send(encode_control(command))
        except OSError:
            return  # the reader is about to see its end
        done: asyncio.Future[None] = self._loop.create_future()
        self._done.append(done)
        await asyncio.wait([done, self.gone], timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)

    async def freeze(self) -> int:
        """Stop all processes of the kernel. Return how many may still run; repeat until the number is 0."""
        if self.gone.done():
            return 0
        try:
            self._tell(Freeze())
        except KernelDiedError:
            return 0  # the reader is about to see its end
        frozen: asyncio.Future[int] = self._loop.create_future()
        self._frozen.append(frozen)
        waited: list[asyncio.Future[Any]] = [frozen, self.gone]
        await asyncio.wait(waited, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if frozen.done():
            return frozen.result()
        return 0 if self.gone.done() else 1

    def unblock(self) -> None:
        """Have the placeholders removed, because the session is idle. The observer gets the answer."""
        with contextlib.suppress(KernelDiedError):
            self._tell(Unblock())

    async def block(self) -> str:
        """Have the placeholders restored, before anything of the session runs. Return why nothing may run; empty if it may."""
        blocked: asyncio.Future[str] = self._loop.create_future()
        try:
            self._tell(Block())
        except KernelDiedError:
            return ""  # the reader is about to see its end
        self._blocked.append(blocked)
        waited: list[asyncio.Future[Any]] = [blocked, self.gone]
        await asyncio.wait(waited, timeout=_PATIENCE_TO_BLOCK, return_when=asyncio.FIRST_COMPLETED)
        if not blocked.done():
            return "" if self.gone.done() else "its init does not answer"
        return blocked.result()

    def thaw(self) -> None:
        """Resume frozen processes."""
        with contextlib.suppress(KernelDiedError):  # then nothing is left to continue
            self._tell(Thaw())

    def begin(
        self,
        argv: Sequence[str],
        cwd: str,
        *,
        env: Mapping[str, str] | None = None,
        changes: Mapping[str, str | None] | None = None,
        keep: Keep = "nothing",
        place: str | None = None,
        stdin: int | None = None,
    ) -> None:
        """Start a program in the session, confined like the worker. One at a time; `finish` waits for it.

        Args:
            argv: The program, by its path or its name on the PATH, and its arguments.
            cwd: Its working directory.
            env: Its environment; None for the session's initial one.
            changes: Variables to set, or to remove (None).
            keep: Which output goes to files instead of the session: ``out``, ``err``, ``both``, ``together``.
            place: Prefix of these files' names; ``.out`` and ``.err`` follow.
            stdin: A file for standard input; by default it is empty.

        Raises:
            KernelDiedError: The session's processes have ended.
            ProtocolError: The request is too large.
        """
        self._runs += 1
        run = Run(self._runs, tuple(argv), cwd, env, changes or {}, keep, place)
        self._tell(run, () if stdin is None else (stdin,))
        self._ran = self._loop.create_future()

    async def finish(self) -> int:
        """Wait for the end of the program. If the waiter is cancelled, the program and all its descendants are killed.

        Returns:
            Its wait status.

        Raises:
            KernelDiedError: The session's processes have ended.
        """
        assert self._ran is not None
        try:
            return await self._ran
        finally:
            if self._ran.cancelled():
                ended = self._ran = self._loop.create_future()
                await self.command(Stop())
                await asyncio.wait([ended, self.gone], timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    ended.exception()  # mark as retrieved: either way, everything has ended

    def execute(self, descriptors: Sequence[int], *, opened: bool) -> None:
        """Start a background program, with its own streams and watcher.

        Args:
            descriptors: The watcher's end of its connection, the file with the specification, and the program's streams.
            opened: As in `Exec`.

        Raises:
            BlockingIOError: Init has many unread messages; try again in a moment.
            KernelDiedError: The session's processes have ended.
        """
        try:
            socket.send_fds(self._sock, [encode_control(Exec(opened))], descriptors)
        except BlockingIOError:
            raise
        except OSError as error:
            raise KernelDiedError(f"the session's init cannot be reached: {error.strerror}") from error

    async def listen(self) -> tuple[socket.socket, int]:
        """Open a listener on the session's own loopback interface.

        Returns:
            The listener, which the caller closes, and its port.

        Raises:
            KernelDiedError: The session's processes have ended.
        """
        self._listened = self._loop.create_future()
        self._tell(Listen())
        return await self._listened

    async def dial(self, port: int) -> socket.socket:
        """Begin a connection to a port of the session.

        Returns:
            The socket, which may still be connecting, and which the caller closes.

        Raises:
            BlockingIOError: Init has many unread messages; try again in a moment.
            OSError: The connection is refused.
            KernelDiedError: The session's processes have ended.
        """
        number = next(self._numbers)
        self._try_to_tell(Dial(number, port))
        dialled: asyncio.Future[socket.socket | int] = self._loop.create_future()
        self._dials[number] = dialled
        try:
            found = await dialled
        except asyncio.CancelledError:
            if dialled.done() and not dialled.cancelled() and isinstance(made := dialled.result(), socket.socket):
                made.close()
            raise
        finally:
            self._dials.pop(number, None)
        if isinstance(found, int):
            raise OSError(found, os.strerror(found))
        return found

    async def list_ports(self) -> tuple[int, ...]:
        """Return the ports that `dial` can reach.

        Raises:
            BlockingIOError, OSError, KernelDiedError: As for `dial`.
        """
        self._try_to_tell(ListPorts())
        listed: asyncio.Future[OpenPorts] = self._loop.create_future()
        self._listed.append(listed)
        found = await listed
        if found.code:
            raise OSError(found.code, os.strerror(found.code))
        return found.ports

    def connect(self, other: socket.socket) -> None:
        """Pass init another connection, for copies of kernels.

        Raises:
            KernelDiedError: The session's processes have ended.
        """
        self._tell(Connect(), (other.fileno(),))

    def measure(self, enough: int) -> None:
        """Request a measurement of the session's memory, exact if it may exceed `enough` bytes.

        The observer gets the answer.
        """
        try:
            self._sock.send(encode_control(Measure(enough)))
        except OSError:
            return  # it is full, or the reader is about to see its end

    async def end(self, patience: float) -> None:
        """Tell init to end everything in the session and itself, and wait for it."""
        if self.hang_up():
            await asyncio.wait([self.gone], timeout=patience)

    def hang_up(self) -> bool:
        """Tell init to end everything that this connection serves. Return whether init still exists."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def give_up(self, why: str) -> None:
        """Fail all waiters, because the session's processes have ended or are unusable."""
        for waiting in (self._ran, self._listened, *self._dials.values(), *self._listed):
            if waiting is not None and not waiting.done():
                waiting.set_exception(KernelDiedError(why))

    def close(self) -> None:
        """Stop reading. The caller of the constructor still owns the socket."""
        self._loop.remove_reader(self._sock.fileno())

    def _try_to_tell(self, command: Command) -> None:
        try:
            self._sock.send(encode_control(command))
        except BlockingIOError:
            raise
        except OSError as error:
            raise KernelDiedError(f"the session's init cannot be reached: {error.strerror}") from error

    def _tell(self, command: Command, descriptors: Sequence[int] = ()) -> None:
        message = encode_control(command)
        try:
            if descriptors:
                socket.send_fds(self._sock, [message], descriptors)
            else:
                self._sock.send(message)
        except OSError as error:
            raise KernelDiedError(f"the session's init cannot be reached: {error.strerror}") from error

    def _on_readable(self) -> None:
        message: FromInit | None = None
        if self._before_exit is not None:
            self._look_ahead(self._before_exit)
        try:
            data, passed = receive_control(self._sock, MAX_CONTROL)
            message = FROM_INIT.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            passed = None
        if isinstance(message, Dialled):
            self._take_dialled(passed, message)
        elif passed is not None:
            self._take_listener(passed, message)
        self._take(message)

    def _look_ahead(self, before_exit: Callable[[int], None]) -> None:
        try:
            data = self._sock.recv(MAX_CONTROL, socket.MSG_PEEK)
            message = FROM_INIT.decode(data) if data else None
        except (OSError, ProtocolError):
            return
        if isinstance(message, Exited):
            before_exit(message.status)

    def _take(self, message: FromInit | None) -> None:
        match message:
            case Done():
                _settle_first(self._done, None)
            case Frozen(left):
                _settle_first(self._frozen, max(left, 0))
            case Blocked(error):
                _settle_first(self._blocked, error)
            case OpenPorts():
                _settle_first(self._listed, message)
            case Unblocked():
                self._observer.unblocked(message)
            case Ran(number, status) if number == self._runs:
                # An invalid wait status comes from a process that pretends to be init, and counts as a failure.
                sane = 0 <= status <= 0xFFFF and (os.WIFEXITED(status) or os.WIFSIGNALED(status))
                _settle(self._ran, status if sane else 0xFF00)
            case Memory(used, copies, excess):
                self._observer.measured(used, copies, excess)
            case Refused():
                self.refused = message
            case Quiet():
                _settle(self.quiet, None)
            case Exited(status):
                self._observer.exited(status)
            case None:  # end of the socket, or an invalid message: nothing that follows is reliable
                self.close()
                self._observer.exited(None)
                _settle(self.gone, None)

    def _take_listener(self, listener: socket.socket, message: FromInit | None) -> None:
        """Take a listener from init: named ones arrive before the session runs any code, others on request."""
        asked = message if isinstance(message, HttpServer) and accepts(listener) else None
        if asked is not None and asked.name is not None and (taker := self.takers.pop(asked.name, None)) is not None:
            taker(listener)
        elif asked is not None and asked.name is None and self._listened is not None and not self._listened.done():
            self._listened.set_result((listener, asked.port))
        else:
            listener.close()
            self._observer.violated("it passed an unrequested socket")

    def _take_dialled(self, made: socket.socket | None, message: Dialled) -> None:
        """Take a connection from init, unless the caller has left, or was another host's."""
        proper = message.code > 0 if made is None else not accepts(made) and is_in_other_network(made)
        waiting = self._dials.get(message.number) if proper else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message.code if made is None else made)
        elif made is not None:
            made.close()
        if not proper:
            self._observer.violated("it passed something else than a connection within the session")


def _settle(future: asyncio.Future[Any] | None, value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _settle_first(futures: deque[asyncio.Future[Any]], value: object) -> None:
    if futures:  # otherwise another host asked, and has ended
        _settle(futures.popleft(), value)
