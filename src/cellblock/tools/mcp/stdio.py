"""The transport to an MCP server through its standard streams.

The SDK's transport reads lines of any length, leaves standard error to the terminal, and cannot end a server when the host
is killed. This one also reads and writes without intermediate tasks, which makes calls faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, cast

import anyio
from anyio.abc import AsyncResource

from cellblock.common import config
from cellblock.tools.calling.content import MAX_MESSAGE
from cellblock.tools.mcp.large import LargeResults, NotJsonError, RefusedMessageError
from cellblock.tools.mcp.lines import Lines, Oversized, edges
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.mcp.place import empty_directory
from cellblock.tools.mcp.server_input import ServerInput
from cellblock.tools.mcp.undecodable import id_of, instead, refusal

if TYPE_CHECKING:
    # Imported on use: the SDK loads while the program starts.
    from mcp.shared.message import SessionMessage

    from cellblock.tools.mcp.sandboxed import ServerSandbox

_KEEPER = Path(__file__).parents[2] / "launch" / "keeper" / "keeper.py"
_MAX_STRAY = 100  # lines in succession that are not messages
_MAX_BLANK = 100_000  # lines in succession that are empty
_SECONDS_AT_A_TIME = 0.005  # for reading lines before other tasks get a turn
_LINES_AT_A_TIME = 16  # the SDK takes longer to handle a message than reading a line takes
_MAX_WAITING = 1024 * 1024  # bytes that have not been consumed; above this, the server must wait
_MAX_STDERR = 4096
_SECONDS_TO_LEAVE = 1.0  # after the end of its standard input, the polite way to stop a server
_SECONDS_TO_END = 10.0  # for the keeper, which needs less


class StdioTransport(asyncio.SubprocessProtocol):
    """The connection to one server process: like the SDK's transports, a context manager for a read and a write stream.

    Args:
        server: The server's name.
        params: The server's parameters, resolved.
        environment: The host's environment.

    Attributes:
        large: The large results that were read.

    Raises:
        InvalidInputError: The policy of the sandbox is impossible.
    """

    def __init__(self, server: str, params: StdioServer, environment: Mapping[str, str]) -> None:
        self.large = LargeResults()
        self._params = params
        self._env = {name: environment[name] for name in config.PROGRAM_VARIABLES if name in environment}
        self._sandbox: ServerSandbox | None = None
        if params.sandbox is not None:
            from cellblock.tools.mcp.sandboxed import ServerSandbox

            self._sandbox = ServerSandbox(server, params.sandbox, params.cwd)
            self._env |= self._sandbox.environment()
        self._env |= params.env
        self._lines = Lines(MAX_MESSAGE)
        self._turn, self._lines_read = 0.0, 0  # when the reader's turn began, and how many lines it read
        self._readable, self._gone = asyncio.Event(), asyncio.Event()
        self._finished = self._leaving = False
        self._left = False  # it ended without being asked to
        self._stray: bytes | None = None
        self._strays = self._blanks = 0
        self._stderr = bytearray()
        self._failure: str | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._input: ServerInput | None = None
        self._lifeline = -1
        self._paused = False
        self._place = contextlib.ExitStack()

    async def __aenter__(self) -> tuple[_Reader, _Writer]:
        """Start the server."""
        theirs, self._lifeline = os.pipe()
        # Shielded: if the start is cancelled, asyncio would kill the keeper, but not the program below it.
        with anyio.CancelScope(shield=True):
            try:
                await self._start(theirs)
            except BaseException as error:
                if isinstance(error, OSError | ValueError):
                    self._failure = f"it cannot be started: {error}"
                if self._input is not None:
                    self._input.close()
                self._cut_lifeline()
                await self._leave_place()
                raise
            finally:
                os.close(theirs)
        return _Reader(self), _Writer(self)

    async def _start(self, lifeline: int) -> None:
        passed: list[int] = []
        if self._sandbox is not None:
            control, passed = await asyncio.to_thread(self._sandbox.prepare)
            sandbox, cwd = str(control), self._params.cwd or "/"
        else:
            sandbox, cwd = "-", self._params.cwd or self._place.enter_context(empty_directory())
        keeper = [sys.executable, "-I", "-S", str(_KEEPER), str(lifeline), sandbox]
        loop = asyncio.get_running_loop()
        self._input, stdin = await ServerInput.open()
        try:
            self._transport, _ = await loop.subprocess_exec(
                lambda: self,
                *keeper,
                self._params.command,
                *self._params.args,
                stdin=stdin,
                env=self._env,
                cwd=cwd,
                pass_fds=(lifeline, *passed),
                start_new_session=True,
            )
        finally:
            stdin.close()
        if self._sandbox is not None:
            self._sandbox.started()

    async def _leave_place(self) -> None:
        """Release the server's directory and sandbox."""
        self._place.close()
        if self._sandbox is not None:
            await self._sandbox.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server: close its input, and kill it if that is not enough. Returns when it has ended."""
        transport = self._transport
        assert transport is not None
        assert self._input is not None
        with anyio.CancelScope(shield=True):
            try:
                self._leaving = True
                self._lines.clear()
                self._pause(False)  # a paused pipe would not report its end
                self._input.close()
                if not await self._wait_until_gone(_SECONDS_TO_LEAVE):
                    self._cut_lifeline()
                    await self._wait_until_gone(_SECONDS_TO_END)
            finally:
                self._cut_lifeline()
                transport.close()
                await self._leave_place()

    def explain(self) -> str:
        """Return why the connection ended, as far as this end knows; else an empty text."""
        code = None if self._transport is None else self._transport.get_returncode()
        said = self._failure or ""
        if not said and code is not None and self._left:
            not_found = "it could not be started (is the program installed, and on the PATH?)"
            said = not_found if code == 127 and self._stderr else f"it ended with exit status {_name(code)}"
        if self._sandbox is not None and (reason := self._sandbox.explain()) and said:
            said = reason if self._sandbox.refused else f"{said}; {reason}"
        if self._stray is not None and not said.startswith("it wrote"):
            said += f"{'; ' if said else ''}it wrote to stdout something other than a message: {self._stray[:200]!r}"
        return said

    def stderr(self) -> str:
        """Return the last lines of the server's standard error."""
        return self._stderr.decode("utf-8", "replace").strip()

    async def _wait_until_gone(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        except TimeoutError:
            return False
        return True

    def _cut_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _pause(self, pause: bool) -> None:
        pipe = None if self._transport is None else cast(asyncio.ReadTransport | None, self._transport.get_pipe_transport(1))
        # Not `is_reading`: pipes of Python 3.11.2 do not have it.
        if pipe is not None and not pipe.is_closing() and self._paused is not pause:
            self._paused = pause
            (pipe.pause_reading if pause else pipe.resume_reading)()

    # Callbacks of the event loop.

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr += data
            del self._stderr[:-_MAX_STDERR]
            return
        if self._leaving:
            return
        self._lines.feed(data)
        if self._lines.waiting > _MAX_WAITING:
            self._pause(True)
        self._readable.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the process, after all of its output was read."""
        self._finish()
        self._gone.set()

    def _finish(self) -> None:
        self._left = self._left or not self._leaving
        self._finished = True
        self._readable.set()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._finish()

    # The interface for the streams.

    async def _receive(self) -> SessionMessage | None:
        """Return the next message; None at the end."""
        while self._failure is None:
            await self._give_way()
            if (line := self._lines.next()) is not None:
                if (message := await self._made_of(line)) is not None:
                    return message
            elif self._lines.size > 16 * MAX_MESSAGE:
                self._fail(f"it wrote a line of more than {16 * MAX_MESSAGE} bytes")
            elif self._finished:
                break
            else:
                self._pause(False)
                self._readable.clear()
                await self._readable.wait()
                self._turn, self._lines_read = time.monotonic(), 0
        return None

    async def _give_way(self) -> None:
        """Yield to other tasks: reading buffered output never blocks, and a server can write without end."""
        self._lines_read += 1
        if self._lines_read >= _LINES_AT_A_TIME or time.monotonic() - self._turn > _SECONDS_AT_A_TIME:
            await asyncio.sleep(0)
            self._turn, self._lines_read = time.monotonic(), 0

    async def _made_of(self, line: bytes | Oversized) -> SessionMessage | None:
        """Parse a line; return the message, or an error in place of a refused one."""
        if isinstance(line, Oversized):
            return self._refusal(line, f"it sent a message of {line.size} bytes, and the limit is {MAX_MESSAGE}")
        try:
            return self._message(await self.large.condense(line))
        except RefusedMessageError as error:
            ends = edges(line)
            if isinstance(error, NotJsonError) and id_of(ends) is None:
                self._take_stray(line)
                return None
            return self._refusal(ends, str(error))

    def _message(self, line: bytes) -> SessionMessage | None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        if not line.strip():
            self._blanks += 1
            if self._blanks >= _MAX_BLANK:
                self._fail(f"it wrote {_MAX_BLANK} empty lines to stdout")
            return None
        try:
            with _collector_paused():
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError as error:
            if (answer := instead(line, error)) is None:
                self._take_stray(line)
            return answer
        self._strays = self._blanks = 0
        return SessionMessage(message)

    def _take_stray(self, line: bytes) -> None:
        """Count a line that is not a message. Many servers print a greeting on stdout."""
        self._stray = self._stray if self._stray is not None else line[:200]
        self._strays += 1
        if self._strays >= _MAX_STRAY:
            self._fail(f"it wrote to stdout something other than a message: {self._stray[:200]!r}")

    def _refusal(self, line: Oversized, complaint: str) -> SessionMessage | None:
        """Return an error in place of a refused response, so that other calls continue."""
        if (number := id_of(line)) is None:
            self._fail(complaint)
            return None
        return refusal(number, complaint)

    async def _send(self, message: SessionMessage) -> None:
        data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if self._leaving or self._input is None:
            raise anyio.BrokenResourceError
        await self._input.write(data)


class _Stream(AsyncResource):
    """One direction of a transport."""

    def __init__(self, transport: StdioTransport) -> None:
        self._transport = transport

    async def aclose(self) -> None:
        """Do nothing: the transport's context closes both directions."""


class _Reader(_Stream):
    """The stream of messages from the server."""

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        with contextlib.suppress(StopAsyncIteration):
            return await self.__anext__()
        raise anyio.EndOfStream

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        if (message := await self._transport._receive()) is None:  # noqa: SLF001  # one object in three parts
            raise StopAsyncIteration
        return message


class _Writer(_Stream):
    """The stream of messages to the server."""

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message; wait while the server does not read."""
        await self._transport._send(item)  # noqa: SLF001  # one object in three parts


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which would visit all objects of the program again and again.

    A parser creates many objects and no garbage. It holds the interpreter's lock, so no other thread is affected.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _name(code: int) -> str:
    try:
        return f"{code} ({signal.Signals(code - 128).name})" if code > 128 else str(code)
    except ValueError:
        return str(code)
