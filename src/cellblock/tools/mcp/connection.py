"""One connection to one MCP server, shared by concurrent calls, and opened and closed by its own task.

The SDK's contexts contain cancel scopes, which the same task must enter and leave, and a failure in the background cancels
that task. One task therefore enters them, waits, and leaves them, and any task can make calls.

The SDK takes most of a second to import, and a server takes as long to start. The program is therefore started first, and
`dialogue`, which uses the SDK, is imported meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from cellblock.errors import McpServerError
from cellblock.tools.calling.content import OnLog, OnProgress, ToolOutcome, ToolSpec
from cellblock.tools.mcp.logins import needs_login
from cellblock.tools.mcp.params import RemoteServer, ServerParams, resolve, secrets
from cellblock.tools.mcp.stdio import StdioTransport
from cellblock.tools.mcp.words import MAX_WORDS, cut

if TYPE_CHECKING:
    from cellblock.tools.approvals.elicitation import Person
    from cellblock.tools.mcp.changes import Check
    from cellblock.tools.mcp.dialogue import Dialogue
    from cellblock.tools.mcp.web import HttpTransport

_T = TypeVar("_T")
_LOG = logging.getLogger("cellblock.tools")


class Connection:
    """A connection to a server, which starts to open when it is created.

    Args:
        server: The server's name.
        params: The server's parameters.
        environment: The host's environment.
        connect_timeout: Limit in seconds for the start.

    Raises:
        InvalidInputError: The parameters refer to a variable that is not set.
    """

    def __init__(self, server: str, params: ServerParams, environment: Mapping[str, str], connect_timeout: float) -> None:
        self._server = server
        self._connect_timeout = params.startup_timeout_sec or connect_timeout
        self._secrets = secrets(params, environment)
        self._params = resolve(params, environment, server_name=server)
        self._transport: StdioTransport | HttpTransport | None = None
        if not isinstance(self._params, RemoteServer):
            self._transport = StdioTransport(server, self._params, environment)
        self._dialogue: Dialogue | None = None
        self._opening: anyio.CancelScope | None = None
        self._opened, self._end = asyncio.Event(), asyncio.Event()
        self._cause = ""
        self._began = time.monotonic()
        self._task = asyncio.create_task(self._run(), name=f"MCP server {server}")

    @property
    def ended(self) -> bool:
        """Whether the connection can no longer be used."""
        return self._end.is_set()

    @property
    def usable(self) -> bool:
        """Whether the connection can be used now, as far as known."""
        return self._dialogue is not None and not self._end.is_set()

    async def opened(self) -> None:
        """Wait until the connection can be used.

        Raises:
            McpServerError: It cannot be opened.
        """
        await self._opened.wait()
        if not self.usable:
            await self.closed()  # then the cause is known
            raise self.error(f"MCP server {self._server!r} cannot be used: {self._cause}")

    async def close(self) -> None:
        """Close the connection, and wait for the end of a server that was started for it."""
        self._cause = self._cause or "it was stopped"
        self.lost()
        await self.closed()

    async def closed(self) -> None:
        """Wait until the connection and everything that belongs to it has ended."""
        await asyncio.wait([self._task])

    # The task that holds the contexts.

    async def _run(self) -> None:
        try:
            with anyio.CancelScope() as self._opening:
                if self._end.is_set():
                    return
                async with self._talking() as dialogue:
                    self._opening.deadline = math.inf
                    self._dialogue = dialogue
                    self._opened.set()
                    took = 1000 * (time.monotonic() - self._began)
                    _LOG.info("MCP server %r started in %.0f ms", self._server, took)
                    await self._end.wait()
            if self._opening.cancelled_caught and not self._end.is_set():
                late = f"it was not ready within {self._connect_timeout:g} s ('startup_timeout_sec' in its parameters: longer)"
                self._cause = self._cause or late
        except Exception as error:  # the SDK, its transports and their libraries raise many kinds, in groups
            self._cause = self._cause or _reason(error)
        finally:
            self._end.set()
            explanation = "" if self._transport is None else self._transport.explain()
            # These observations are more precise than the SDK's error, and less precise than the exit of the process.
            if explanation and explanation not in self._cause:
                vague = self._cause in explanation or self._cause in ("Connection closed", "Server returned an error response")
                self._cause = explanation if vague else f"{self._cause}; {explanation}"
            self._cause = self._cause or "the connection was closed"
            self._opened.set()
            _LOG.info("MCP server %r stopped: %.500r", self._server, self._without_secrets(self._cause))

    @asynccontextmanager
    async def _talking(self) -> AsyncIterator[Dialogue]:
        async with AsyncExitStack() as stack:
            streams: AbstractAsyncContextManager[Any]
            if isinstance(self._transport, StdioTransport):
                streams = nullcontext(await stack.enter_async_context(self._transport))
            module = await asyncio.to_thread(import_module, "cellblock.tools.mcp.dialogue")
            assert self._opening is not None
            self._opening.deadline = anyio.current_time() + self._connect_timeout  # the import is not the server's fault
            if isinstance(self._params, RemoteServer):
                streams = self._transport = module.HttpTransport(self._params, self._connect_timeout, self.lost, self._server)
            bare = isinstance(self._transport, StdioTransport)
            assert self._transport is not None
            dialogue = module.Dialogue.connect(self._server, streams, self.lost, self._transport.large, bare=bare)
            yield await stack.enter_async_context(dialogue)

    def lost(self, cause: str = "") -> None:
        """Mark the connection as unusable, and close it."""
        self._cause = self._cause or cause
        self._end.set()
        if not self._opened.is_set() and self._opening is not None:
            self._opening.cancel()

    async def cause(self) -> str:
        """Close the connection; return why it ended. A dying server may report the reason after the connection is closed."""
        self.lost()
        await asyncio.shield(self.closed())
        return self._cause

    def trouble(self) -> str:
        """Return the failure of an HTTP request; empty if there was none."""
        return "" if self._transport is None or isinstance(self._transport, StdioTransport) else self._transport.explain()

    @property
    def needs_login(self) -> bool:
        """Whether the server asks for a login."""
        return self.trouble() == needs_login(self._server)

    def error(self, message: str) -> McpServerError:
        """Return an error about this server, with the end of its stderr, and without secrets."""
        message = needs_login(self._server) if self.needs_login else message
        stderr = "" if self._transport is None else self._without_secrets(self._transport.stderr())
        return McpServerError(self._without_secrets(message) + _written(stderr), server=self._server, stderr=stderr)

    def _without_secrets(self, text: str) -> str:
        """Remove secrets from a text for code in a session: servers print their environment, and libraries print URLs."""
        more = [] if self._transport is None or isinstance(self._transport, StdioTransport) else self._transport.secrets()
        for secret in filter(None, (*more, *self._secrets)):
            text = text.replace(secret, "***")
        return text

    # For callers, once it is `opened`.

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        check: Check | None = None,
        person: Person | None = None,
    ) -> ToolOutcome:
        """Call a tool; see `Servers.call`."""
        assert self._dialogue is not None
        answer = self._dialogue.call(tool, arguments, on_progress, on_log, check, person)
        return await self._answer(f"tool {tool!r} of MCP server {self._server!r}", answer, timeout)

    async def list_tools(self) -> list[ToolSpec]:
        """Return all tools of the server; see `Servers.list_tools`."""
        assert self._dialogue is not None
        doing = f"the list of tools of MCP server {self._server!r}"
        return await self._answer(doing, self._dialogue.list_tools(), self._connect_timeout)

    @property
    def instructions(self) -> str:
        """What the server says about its use."""
        return "" if self._dialogue is None else self._dialogue.instructions

    def has_announced(self) -> bool:
        """Return whether the server has announced other tools since the last call of this method."""
        if self._dialogue is None or not self._dialogue.announced:
            return False
        self._dialogue.announced = False
        return True

    async def _answer(self, doing: str, answer: Awaitable[_T], timeout: float | None) -> _T:
        """Wait for an answer; explain failures by their cause."""
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError as error:
            within = "in time" if timeout is None else f"within {timeout:g} s"
            raise self.error(f"{doing} did not answer {within}; the call was cancelled") from error
        except ConnectionError as error:
            raise self.error(f"{doing} was interrupted: {await self.cause()}") from error
        except McpServerError as error:
            more = f" ({trouble})" if (trouble := self.trouble()) else ""
            raise self.error(f"{doing} {error}{more}") from error


def _reason(error: BaseException) -> str:
    """Return the first cause in a tree of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if (response := getattr(error, "response", None)) is not None:  # httpx's own message contains the URL
        return f"HTTP {response.status_code} {response.reason_phrase}"
    return cut(str(error) or type(error).__name__)


def _written(stderr: str) -> str:
    """Format the end of a server's stderr for an error; a single line is appended to the message."""
    if not stderr:
        return ""
    end = stderr[-MAX_WORDS:]
    return f"\nThe last lines it wrote to stderr:\n{end}" if "\n" in end else f"; it wrote to stderr: {end}"
