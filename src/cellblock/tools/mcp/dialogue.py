"""What is said on a connection to an MCP server: calls, lists, progress and logs, in the words of the SDK."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.shared.dispatcher import ProgressFnT
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from cellblock.errors import InvalidInputError, McpServerError
from cellblock.tools.calling.content import ToolOutcome, ToolSpec
from cellblock.tools.mcp.connection import OnLog, OnProgress, cut
from cellblock.tools.mcp.jsonrpc import Requests
from cellblock.tools.mcp.translate import outcome_of, spec_of
from cellblock.tools.mcp.web import HttpTransport

if TYPE_CHECKING:
    from cellblock.tools.mcp.connection import Connection

__all__ = ["Dialogue", "HttpTransport"]

MAX_TOOLS = 10_000
_MAX_PAGES = 1_000
_LOG_LEVEL: types.LoggingLevel = "info"
_RESULT = frozenset(("_meta", "content", "structuredContent", "isError"))
"""What the result of a call has in the versions of the protocol that begin with a handshake."""

_CLIENT = types.Implementation(name="cellblock", version="1")

# What goes wrong with a server is told by our errors; a program without logging would find it on its stderr as well.
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("client").addHandler(logging.NullHandler())


class Dialogue:
    """The client's side of one connection.

    Args:
        connection: Knows whether it can be used, and why it has ended.
        server: The server's name.
        timeout: Seconds for what is asked beside calls.
    """

    def __init__(self, connection: Connection, server: str, timeout: float) -> None:
        self._connection = connection
        self._server = server
        self._timeout = timeout
        self._client: Client | None = None
        self._requests: Requests | None = None  # None where calls are the SDK's
        self._stale = True  # what the SDK knows of the tools and their schemas
        self._listing = asyncio.Lock()
        self._logs: dict[object, OnLog] = {}
        self._wants_logs = False

    @asynccontextmanager
    async def over(self, streams: AbstractAsyncContextManager[tuple[Any, Any]], *, bare: bool) -> AsyncIterator[None]:
        """Speak over these streams.

        Args:
            streams: One to read and one to write, open while the context is entered.
            bare: Whether a message is all that a request takes. Over HTTP it has headers, which are the SDK's to know.
        """
        client = Client(
            self._beside(streams, bare),
            cache=None,
            client_info=_CLIENT,
            elicitation_callback=_decline,
            logging_callback=self._hear_log,
            message_handler=self._hear,
        )
        async with client:
            self._client = client
            yield

    @asynccontextmanager
    async def _beside(
        self, streams: AbstractAsyncContextManager[tuple[Any, Any]], bare: bool
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Open the streams for the SDK, and keep a way to send requests beside its own."""
        async with streams as (reader, writer):
            requests = Requests(reader, writer, self._connection.lost)
            self._requests = requests if bare else None
            yield requests, writer

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
            raise self._connection.error(f"{doing} did not answer {within}; the call was cancelled") from error
        except MCPError as error:
            raise await self._explained(doing, error) from error
        except ValidationError as error:
            raise self._connection.error(f"{doing} returned what is no result: {cut(str(error))}") from error
        except PydanticSerializationError as error:
            raise InvalidInputError(f"the arguments for {doing} cannot be sent as JSON: {error}") from error
        except (RuntimeError, ValueError) as error:
            # The SDK's for a result that does not fit its schema, which may have changed; ours for bytes that are not base64.
            self._stale = True
            raise self._connection.error(f"{doing} returned what it should not: {cut(str(error))}") from error

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
            async with asyncio.timeout(self._timeout):
                return [spec_of(tool) for tool in await self._list()]
        except TimeoutError as error:
            raise self._connection.error(f"{doing} did not come within {self._timeout:g} s") from error
        except MCPError as error:
            raise await self._explained(doing, error) from error
        except (ValidationError, RuntimeError, ValueError) as error:
            raise self._connection.error(f"{doing} is wrong: {cut(str(error))}") from error

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
        if self._client is None or not self._connection.usable:
            raise MCPError(types.CONNECTION_CLOSED, "Connection closed")
        return self._client

    async def _explained(self, doing: str, error: MCPError) -> McpServerError:
        """Return the error that says what lies behind one of the SDK's."""
        if error.code == types.CONNECTION_CLOSED:
            return self._connection.error(f"{doing} was interrupted: {await self._connection.cause()}")
        explanation = self._connection.trouble()
        more = f" ({explanation})" if explanation else ""
        return self._connection.error(f"{doing} failed: {cut(error.message)}{more} [{error.code}]")

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
