"""One connection to one MCP server: opened, used by many calls at a time, and closed, in a task of its own.

The SDK's contexts hold cancel scopes, which must be left by the task that entered them; and what breaks in the background
cancels that task. So a task enters them, waits, and leaves them, and calls come from wherever they come from.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, cast

import anyio
import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.shared.dispatcher import ProgressFnT
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from cellblock.errors import InvalidInputError, McpServerError
from cellblock.tools.content import ToolOutcome, ToolSpec, outcome_of, spec_of
from cellblock.tools.jsonrpc import OnProgress, Requests
from cellblock.tools.params import HttpServer, ServerParams, resolve, secrets
from cellblock.tools.stdio import StdioTransport
from cellblock.tools.web import HttpTransport

OnLog: TypeAlias = Callable[[str, str], None]

MAX_TOOLS = 10_000
_MAX_PAGES = 1_000
_MAX_WORDS = 2_000  # of what a server says in an error

_LOG_LEVEL: types.LoggingLevel = "info"
_RESULT = frozenset(("_meta", "content", "structuredContent", "isError"))
"""What the result of a call has in the versions of the protocol that begin with a handshake."""

_CLIENT = types.Implementation(name="cellblock", version="1")

# What goes wrong with a server is told by our errors; a program without logging would find it on its stderr as well.
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("client").addHandler(logging.NullHandler())


class Connection:
    """A connection to a server. It starts to open when it is made.

    Args:
        server: The server's name.
        params: How to reach it.
        environment: The host's.
        connect_timeout: Seconds in which it has to be ready.

    Raises:
        InvalidInputError: The parameters refer to a variable that is not set.
    """

    def __init__(self, server: str, params: ServerParams, environment: Mapping[str, str], connect_timeout: float) -> None:
        self._server = server
        self._connect_timeout = connect_timeout
        self._secrets = secrets(params, environment)
        resolved = resolve(params, environment, server_name=server)
        self._transport: StdioTransport | HttpTransport = (
            HttpTransport(resolved, connect_timeout, self._lost)
            if isinstance(resolved, HttpServer)
            else StdioTransport(resolved, environment)
        )
        self._client: Client | None = None
        self._requests: Requests | None = None  # None where calls are the SDK's
        self._opening: anyio.CancelScope | None = None
        self._opened, self._end = asyncio.Event(), asyncio.Event()
        self._cause = ""
        self._stale = True  # what the SDK knows of the tools and their schemas
        self._listing = asyncio.Lock()
        self._logs: dict[object, OnLog] = {}
        self._wants_logs = False
        self._task = asyncio.create_task(self._run(), name=f"MCP server {server}")

    @property
    def ended(self) -> bool:
        """Whether it is of no use any more."""
        return self._end.is_set()

    @property
    def usable(self) -> bool:
        """Whether it can be used now, as far as is known."""
        return self._client is not None and not self._end.is_set()

    async def opened(self) -> None:
        """Wait until it can be used.

        Raises:
            McpServerError: It cannot.
        """
        await self._opened.wait()
        if not self.usable:
            await self.closed()  # it knows the cause by then
            raise self._error(f"MCP server {self._server!r} cannot be used: {self._cause}")

    async def close(self, cause: str = "it was stopped") -> None:
        """End the connection, and the server with it where that was started for it. Returns when it is gone."""
        self._cause = self._cause or cause
        self._lost()
        await self.closed()

    async def closed(self) -> None:
        """Wait until the connection has ended, and everything of it is gone."""
        await asyncio.wait([self._task])

    # The task that holds the contexts.

    async def _run(self) -> None:
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + self._connect_timeout) as self._opening:
                if self._end.is_set():
                    return
                client = Client(
                    self._streams(),
                    cache=None,
                    client_info=_CLIENT,
                    elicitation_callback=_decline,
                    logging_callback=self._hear_log,
                    message_handler=self._hear,
                )
                async with client:
                    self._opening.deadline = math.inf
                    self._client = client
                    self._opened.set()
                    await self._end.wait()
            if self._opening.cancelled_caught and not self._end.is_set():
                self._cause = self._cause or f"it was not ready within {self._connect_timeout:g} s"
        except Exception as error:  # of whatever the SDK, its transports and their libraries may raise, in groups
            self._cause = self._cause or _reason(error)
        finally:
            self._end.set()
            explanation = self._transport.explain()
            # What this end saw says more than what the SDK made of it, and less than who ended it.
            if explanation and explanation not in self._cause:
                vague = self._cause in explanation or self._cause in ("Connection closed", "Server returned an error response")
                self._cause = explanation if vague else f"{self._cause}; {explanation}"
            self._cause = self._cause or "the connection was closed"
            self._opened.set()

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Open the transport for the SDK, and keep a way to send requests beside its own."""
        async with self._transport as (reader, writer):
            requests = Requests(reader, writer, self._lost)
            # Over HTTP each request has headers, which are the SDK's to know.
            self._requests = requests if isinstance(self._transport, StdioTransport) else None
            yield requests, writer

    def _lost(self) -> None:
        self._end.set()
        if not self._opened.is_set() and self._opening is not None:
            self._opening.cancel()

    def _error(self, message: str) -> McpServerError:
        stderr = self._without_secrets(self._transport.stderr())
        said = f"\nThe last it wrote to stderr:\n{stderr[-_MAX_WORDS:]}" if stderr else ""
        return McpServerError(self._without_secrets(message) + said, server=self._server, stderr=stderr)

    def _without_secrets(self, text: str) -> str:
        """Return a text that code in a session may see: servers print their environment, and libraries URLs."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    # What callers do.

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        timeout: float | None,
        on_progress: OnProgress | None,
        on_log: OnLog | None,
    ) -> ToolOutcome:
        """Call a tool; see `Servers.call`."""
        doing = f"tool {tool!r} of MCP server {self._server!r}"
        try:
            async with asyncio.timeout(timeout):
                return await self._call(tool, arguments, on_progress, on_log)
        except TimeoutError as error:
            within = "in time" if timeout is None else f"within {timeout:g} s"
            raise self._error(f"{doing} did not answer {within}; the call was cancelled") from error
        except MCPError as error:
            raise await self._explained(doing, error) from error
        except ValidationError as error:
            raise self._error(f"{doing} returned what is no result: {_cut(str(error))}") from error
        except PydanticSerializationError as error:
            raise InvalidInputError(f"the arguments for {doing} cannot be sent as JSON: {error}") from error
        except (RuntimeError, ValueError) as error:
            # The SDK's for a result that does not fit its schema, which may have changed; ours for bytes that are not base64.
            self._stale = True
            raise self._error(f"{doing} returned what it should not: {_cut(str(error))}") from error

    async def _call(
        self,
        tool: str,
        arguments: dict[str, Any],
        on_progress: OnProgress | None,
        on_log: OnLog | None,
    ) -> ToolOutcome:
        if self._stale:
            await self._refresh()
        client = self._open_client()
        if on_log is None:
            return outcome_of(await self._result(client, tool, arguments, on_progress))
        meta = await self._ask_for_logs(client)
        key = object()
        self._logs[key] = on_log
        try:
            result = await self._result(client, tool, arguments, on_progress, meta)
            await asyncio.sleep(0)  # what was logged before the result is still on its way to us
            return outcome_of(result)
        finally:
            del self._logs[key]

    async def _result(
        self,
        client: Client,
        tool: str,
        arguments: dict[str, Any],
        on_progress: OnProgress | None,
        meta: types.RequestParamsMeta | None = None,
    ) -> types.CallToolResult:
        if self._requests is None or client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            progress = None if on_progress is None else _as_coroutine(on_progress)
            return await client.call_tool(tool, arguments, progress_callback=progress, meta=meta)
        said = await self._requests.send("tools/call", {"name": tool, "arguments": arguments}, on_progress)
        result = types.CallToolResult.model_validate({key: said[key] for key in _RESULT & said.keys()}, by_name=False)
        if not isinstance(result.structured_content, dict | None):
            raise ValueError("structured content that is no object")  # noqa: TRY004  # it is no argument that has the wrong type
        if not result.is_error:
            await client.session.validate_tool_result(tool, result)
        return result

    async def list_tools(self) -> list[ToolSpec]:
        """Ask the server for all of its tools.

        Raises:
            McpServerError: It does not tell, or tells more than `MAX_TOOLS`.
        """
        doing = f"the list of tools of MCP server {self._server!r}"
        try:
            async with asyncio.timeout(self._connect_timeout):
                return [spec_of(tool) for tool in await self._list()]
        except TimeoutError as error:
            raise self._error(f"{doing} did not come within {self._connect_timeout:g} s") from error
        except MCPError as error:
            raise await self._explained(doing, error) from error
        except (ValidationError, RuntimeError, ValueError) as error:
            raise self._error(f"{doing} is wrong: {_cut(str(error))}") from error

    async def _list(self) -> list[types.Tool]:
        tools: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._open_client().list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or len(tools) > MAX_TOOLS:
                break
        if cursor is not None or len(tools) > MAX_TOOLS:
            raise ValueError(f"it has more than {MAX_TOOLS} tools or {_MAX_PAGES} pages")
        return tools

    async def _refresh(self) -> None:
        """Let the SDK know all tools. It would ask for the first page only, once for each call of a tool that is not on it."""
        async with self._listing:
            if not self._stale:
                return
            self._stale = False
            try:
                await self._list()
            except MCPError as error:
                if error.code == types.CONNECTION_CLOSED:
                    raise
                return  # a server need not list what it has; nothing is known of the results then

    async def _ask_for_logs(self, client: Client) -> types.RequestParamsMeta | None:
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return cast(types.RequestParamsMeta, {types.LOG_LEVEL_META_KEY: _LOG_LEVEL})
        if not self._wants_logs and client.server_capabilities.logging is not None:
            self._wants_logs = True
            request = types.SetLevelRequest(params=types.SetLevelRequestParams(level=_LOG_LEVEL))
            try:
                await client.session.send_request(request, types.EmptyResult)
            except MCPError:
                return None  # it logs as it likes
        return None

    def _open_client(self) -> Client:
        if self._client is None or not self.usable:
            raise MCPError(types.CONNECTION_CLOSED, "Connection closed")
        return self._client

    async def _explained(self, doing: str, error: MCPError) -> McpServerError:
        """Return the error that says what lies behind one of the SDK's."""
        if error.code == types.CONNECTION_CLOSED:
            # A server that dies says why after its connection is closed.
            self._lost()
            await asyncio.shield(self.closed())
            return self._error(f"{doing} was interrupted: {self._cause}")
        explanation = self._transport.explain() if isinstance(self._transport, HttpTransport) else ""
        more = f" ({explanation})" if explanation else ""
        return self._error(f"{doing} failed: {_cut(error.message)}{more} [{error.code}]")

    # What the server says unasked.

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale = True

    async def _hear_log(self, params: types.LoggingMessageNotificationParams) -> None:
        # Which of the calls it belongs to, the protocol does not say.
        text = params.data if isinstance(params.data, str) else json.dumps(params.data)
        for listener in [*self._logs.values()]:
            listener(params.level, text)


async def _decline(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Answer a server that asks the user something: there is nobody to ask."""
    return types.ElicitResult(action="decline")


def _as_coroutine(on_progress: OnProgress) -> ProgressFnT:
    async def tell(progress: float, total: float | None, message: str | None) -> None:
        on_progress(progress, total, message)

    return tell


def _reason(error: BaseException) -> str:
    """Return the first thing that went wrong in a tree of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, httpx2.HTTPStatusError):  # its own words hold the URL
        return f"HTTP {error.response.status_code} {error.response.reason_phrase}"
    return _cut(str(error) or type(error).__name__)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]} …"
