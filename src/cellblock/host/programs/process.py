"""A background program: its streams, signals to it, and its end."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import socket
import struct
import termios
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.errors import InvalidInputError, ProtocolError
from cellblock.host.descriptors import receive_message
from cellblock.host.programs.output import Output
from cellblock.host.programs.stdin import Stdin
from cellblock.model.programs import (
    ExecResult,
    Keep,
    ProcessInfo,
    ProcessOutput,
    ProgramOutput,
    ProgramStatus,
    ProgramStream,
    Scope,
    check_size,
    describe_signal,
)
from cellblock.wire.datagrams import MAX_CONTROL, encode_control
from cellblock.wire.program_messages import FROM_WATCHER, Ended, Failed, Signal, Started, Unstarted

if TYPE_CHECKING:
    from collections.abc import Mapping

_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
_PATIENCE = 2.0  # seconds for killed processes to be gone

_MOST = 256 * 1024
"""Bytes of output, and a piece, that one answer has."""

_STREAMS: tuple[ProgramStream, ...] = ("stdout", "stderr")
_FAILED: Mapping[Failed, str] = {
    "sandbox": "its sandbox could not be entered",
    "terminal": "no terminal could be made",
    "cwd": "its directory cannot be entered",
    "log": "its log cannot be opened",
    "program": "it cannot be executed",
}


class Process:
    """A background program in the session's sandbox, from `Session.spawn`.

    Iterate over it for its output::

        async for piece in process:
            print(piece.stream, piece.data)

    It outlives the kernel, and ends with the session or its `reset`.
    """

    def __init__(
        self,
        number: int,
        command: tuple[str, ...],
        label: str,
        keep: Keep,
        connection: socket.socket,
        outputs: list[int],
        stdin: int | None,
        on_gone: Callable[[Process], None],
        *,
        terminal: bool,
    ) -> None:
        """Take ownership of the host's ends of a program that is about to start.

        Args:
            number: Its number in the session.
            command: The program and its arguments.
            label: Its label.
            keep: How unread output is handled.
            connection: The connection to its watcher.
            outputs: The reading ends of its output.
            stdin: The writing end of its standard input, if any.
            on_gone: Called when it and all its child processes have ended.
            terminal: Whether it has a terminal, which arrives after its start.
        """
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._on_gone = on_gone
        self._info = ProcessInfo(
            id=f"p{number}", pid=0, command=command, label=label, running=True, terminal=terminal, started=time.time()
        )
        self._began = self._loop.time()
        self._output = Output(keep)
        self._stdin = None if stdin is None else Stdin(stdin)
        self._terminal: int | None = None
        self._asked: ProgramStatus | None = None
        """The status to report because we end it; None if we do not."""
        self._why = ""
        self._result: ExecResult | None = None
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._stopping: asyncio.Task[None] | None = None
        for descriptor, stream in zip(outputs, _STREAMS, strict=False):
            self._output.follow(descriptor, stream)
        self._loop.add_reader(connection.fileno(), self._hear)

    def __repr__(self) -> str:
        return f"<Process {self.id} {' '.join(self._info.command)[:60]!r} {'running' if self._info.running else 'ended'}>"

    # -- properties ----------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Id in the session, such as ``p1``."""
        return self._info.id

    @property
    def pid(self) -> int:
        """Process id in the session."""
        return self._info.pid

    @property
    def info(self) -> ProcessInfo:
        """Current state."""
        return self._info

    @property
    def gone(self) -> bool:
        """Whether it and all its child processes have ended."""
        return self._gone.done()

    # -- output and input ----------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncGenerator[ProgramOutput, None]:
        """Yield its output until it has ended. A slow reader slows the program (backpressure)."""
        position = 0
        while pieces := await self.read(position):
            for piece in pieces:
                yield piece
            position = pieces[-1].offset + len(pieces[-1].data)

    async def read(self, since: int = 0) -> tuple[ProgramOutput, ...]:
        """Wait for output from a position on, and return it; empty when the program has ended and all was read.

        Output before the position counts as read. After a lost connection, continue from the last position.

        Args:
            since: The position: a byte offset in both streams together.
        """
        if not isinstance(since, int) or since < 0:
            raise InvalidInputError(f"since must be a number of bytes, not {since!r}")
        return await self._output.take(since)

    async def output(self, since: int = 0, wait: float = 0.0) -> ProcessOutput:
        """Return some output from a position on. The last part includes how the program ended.

        Args:
            since: As for `read`.
            wait: Seconds to wait for output, or for the end.
        """
        if not self._output.finished and self._output.end <= since and wait:
            reading = asyncio.create_task(self.read(since))
            try:
                await asyncio.wait([reading], timeout=wait)
            finally:
                reading.cancel()
        else:
            self._output.take_before(since)
        pieces, size = [], 0
        for piece in self._output.so_far(since):
            if size >= _MOST:
                break
            pieces.append(piece)
            size += len(piece.data)
        position = pieces[-1].offset + len(pieces[-1].data) if pieces else since
        finished = self._output.finished and self._result is not None and position >= self._output.end
        return ProcessOutput(
            pieces=tuple(pieces), position=position, finished=finished, result=self._result if finished else None
        )

    async def write(self, data: bytes | str) -> None:
        """Write to its standard input or terminal. Returns when all data was taken.

        Raises:
            InvalidInputError: It has no standard input, or the data are neither bytes nor text.
            BrokenPipeError: It no longer reads.
        """
        if self._stdin is None:
            raise InvalidInputError(f"process {self.id} has no standard input: start it with spawn(…, stdin=True)")
        if not isinstance(data, bytes | str):
            raise InvalidInputError(f"what is written to a process must be bytes or text, not {type(data).__name__}")
        await self._stdin.write(data.encode() if isinstance(data, str) else data)

    def close_stdin(self) -> None:
        """Close its standard input. For a terminal, write Ctrl-D (byte 4) instead."""
        if self._stdin is not None and self._terminal is None:
            self._stdin.close()

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal.

        Raises:
            InvalidInputError: It has no terminal, or a number is invalid.
        """
        check_size((rows, columns))
        if not self._info.terminal:
            raise InvalidInputError(f"process {self.id} has no terminal: start it with spawn(…, pty=(rows, columns))")
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # -- end -----------------------------------------------------------------------------------------------------------

    def signal(self, number: int, scope: Scope = "group") -> None:
        """Send a signal, if the program runs.

        Args:
            number: The number, such as `signal.SIGINT`.
            scope: ``program``, its process ``group``, or the ``tree`` of all its child processes.

        Raises:
            InvalidInputError: The signal or the scope is unknown.
        """
        if not isinstance(number, int) or not 0 < number < signal.NSIG:
            raise InvalidInputError(f"a signal is a number from 1 to {signal.NSIG - 1}, not {number!r}")
        check_scope(scope)
        self._send(Signal(int(number), scope))

    def _send(self, message: Signal) -> None:
        try:
            self._connection.send(encode_control(message))
        except OSError:
            return  # it has ended, or is stopped with many signals to read

    async def stop(self, grace: float = _GRACE, *, scope: Scope = "tree") -> ExecResult:
        """Stop the program with SIGTERM, then SIGKILL if it does not end.

        Args:
            grace: Seconds between the two.
            scope: As for `signal`. With ``tree``, all child processes have ended on return.

        Returns:
            How it ended.
        """
        check_scope(scope)
        await self.end("cancelled", "it was stopped", grace, scope)
        return await self.wait()

    async def end(self, status: ProgramStatus, why: str, grace: float = _GRACE, scope: Scope = "tree") -> None:
        """End the program for a reason, shown in its result, even if the caller is cancelled."""
        if not self._ended.done() and self._asked is None:
            self._asked, self._why = status, why
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._end(grace, scope))
        await asyncio.shield(self._stopping)

    async def _end(self, grace: float, scope: Scope) -> None:
        done = self._gone if scope == "tree" else self._ended
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, _PATIENCE)):
            if done.done():
                return
            self._send(Signal(int(number), scope))
            await asyncio.wait([done], timeout=patience)
        if not done.done():  # the session's code stopped its watcher, or it cannot be killed now
            self.abandon()

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """Wait for the end of the program. Return how it ended, without its output.

        Args:
            timeout: Time limit in seconds; None for no limit.

        Raises:
            TimeoutError: It still runs.
        """
        await asyncio.wait([self._ended], timeout=timeout)
        if self._result is None:
            raise TimeoutError(f"process {self.id} still runs after {timeout:g} s")
        return self._result

    def poll(self) -> ExecResult | None:
        """Return how it ended; None while it runs."""
        return self._result

    async def begun(self) -> None:
        """Wait until it runs, or could not be started."""
        await asyncio.wait([self._begun])

    def when_ended(self, act: Callable[[ExecResult], None]) -> None:
        """Register a callback for its result."""

        def ended(_future: asyncio.Future[None]) -> None:
            assert self._result is not None
            act(self._result)

        self._ended.add_done_callback(ended)

    def kill(self, why: str) -> None:
        """Kill the program and all its child processes for a reason, without waiting."""
        if not self._ended.done() and self._asked is None:
            self._asked, self._why = "cancelled", why
        self._send(Signal(int(signal.SIGKILL), "tree"))

    def abandon(self) -> None:
        """Stop waiting for the program. Its watcher kills all its processes, if it can."""
        if not self._gone.done():
            self._loop.remove_reader(self._connection.fileno())
            self._lose()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        try:
            data, descriptors = receive_message(self._connection, MAX_CONTROL)
            message = FROM_WATCHER.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            message, descriptors = None, []
        if descriptors and isinstance(message, Started) and self._info.terminal and self._terminal is None:
            self._take_terminal(descriptors.pop())
        for descriptor in descriptors:
            os.close(descriptor)
        match message:
            case Started(pid):
                self._info = replace(self._info, pid=pid)
                self._settle(self._begun)
            case Unstarted():
                self._finish(self._unstarted(message))
            case Ended(status, left):
                self._info = replace(self._info, left=left)
                self._finish(self._exited(status, left))
            case None:
                self._loop.remove_reader(self._connection.fileno())
                self._lose()

    def _take_terminal(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._terminal = descriptor
        self._stdin = Stdin(os.dup(descriptor))
        self._output.follow(os.dup(descriptor), "stdout")

    def _unstarted(self, message: Unstarted) -> ExecResult:
        missing = message.what == "program" and message.code in (errno.ENOENT, errno.ENOTDIR)
        why = _FAILED[message.what] + (f": {os.strerror(message.code)}" if message.code else "")
        if message.code == errno.EAGAIN:
            why += "; the policy allows no more processes: end some, or allow more (Resources(processes=…))"
        return ExecResult(
            status="not_started",
            exit_code=127 if missing else 126,
            errno=message.code or None,
            reason=f"{self._info.command[0]} was not started: {why}",
        )

    def _exited(self, status: int, left: tuple[int, ...]) -> ExecResult:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if number is None else 128 + number
        kind: ProgramStatus = self._asked or ("exited" if number is None else "signalled")
        reason = self._why if self._asked is not None else "" if number is None else f"{describe_signal(number)} ended it"
        return ExecResult(status=kind, exit_code=code, signal=number, reason=reason, left=left)

    def _finish(self, result: ExecResult) -> None:
        if self._result is not None:
            return
        duration = round(1000 * (self._loop.time() - self._began))
        self._result = replace(result, duration_ms=duration)
        self._info = replace(self._info, running=False, exit_code=result.exit_code)
        self._output.program_ended()
        self._settle(self._begun)
        self._settle(self._ended)

    def _lose(self) -> None:
        """Handle the loss of its watcher: all its processes have ended, or their state is unknown."""
        unknown = "its watcher was killed" if self._asked is None else f"{self._why}, and did not answer"
        self._finish(ExecResult(status="unknown", exit_code=None, reason=unknown))
        self._info = replace(self._info, left=())
        if self._result is not None:
            self._result = replace(self._result, left=())
        self._connection.close()
        self._output.close()
        if self._stdin is not None:
            self._stdin.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None
        self._settle(self._gone)
        self._on_gone(self)

    @staticmethod
    def _settle(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)


def check_scope(scope: object) -> None:
    """Validate the scope of a signal."""
    if scope not in ("program", "group", "tree"):
        raise InvalidInputError(f"scope must be 'program', 'group' or 'tree', not {scope!r}")
