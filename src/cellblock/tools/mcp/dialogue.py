"""The client's side of an MCP connection: calls, lists, progress and logs, with the SDK."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Self, cast

import mcp_types as types
from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from cellblock.errors import CellblockError, InvalidInputError, McpServerError
from cellblock.tools.approvals.elicitation import Person
from cellblock.tools.calling.content import READ_RESOURCE, OnLog, OnProgress, ToolOutcome, ToolSpec
from cellblock.tools.mcp.changes import GONE, Check, ToolFacts, facts_of
from cellblock.tools.mcp.elicit import Elicitations
from cellblock.tools.mcp.jsonrpc import Answers, Requests
from cellblock.tools.mcp.large import LargeResults
from cellblock.tools.mcp.translate import outcome_of, outcome_of_resource, spec_of
from cellblock.tools.mcp.web import HttpTransport
from cellblock.tools.mcp.words import cut

__all__ = ["Dialogue", "HttpTransport"]

MAX_TOOLS = 10_000
MAX_LIST = 8 * 1024 * 1024
"""Maximum bytes of JSON of all pages of a list of tools."""

_MAX_PAGES = 1_000
_MAX_INSTRUCTIONS = 8_000
_SECONDS_TO_LIST = 30.0
_LOG_LEVEL: types.LoggingLevel = "info"
_RESULT = frozenset(("_meta", "content", "structuredContent", "isError"))
"""The fields of a call's result in protocol versions with a handshake."""

_LOG = logging.getLogger("cellblock.tools")
_CLIENT = types.Implementation(name="cellblock", version="1")

# cellblock's errors already report failures of a server. Without this, programs without logging would also see them on
# stderr.
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("client").addHandler(logging.NullHandler())


class Dialogue:
    """The client's side of one connection: requests, and the handling of answers. See `connect`."""

    def __init__(self, server: str, large: LargeResults) -> None:
        self._elicitations = Elicitations(server)
        self._large = large
        self._client: Client | None = None
        self._requests: Requests | None = None
        self._stale = True  # the list of tools must be fetched again
        self._listing = asyncio.Lock()
        self._tools: dict[str, ToolSpec] | None = None  # None: the server does not list them
        self._facts: dict[str, ToolFacts] = {}
        self._reading: Requests
        self._logs: dict[object, OnLog] = {}
        self._wants_logs = False
        self._reporting = 0  # calls whose progress the SDK reports
        self.announced = False
        """Whether the server has announced other tools since this was reset."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        server: str,
        streams: AbstractAsyncContextManager[tuple[Any, Any]],
        lost: Callable[[str], None],
        large: LargeResults,
        *,
        bare: bool,
    ) -> AsyncIterator[Self]:
        """Start a dialogue over these streams.

        Args:
            server: The server's name.
            streams: One to read and one to write, open while the context is active.
            lost: Called at the end of the stream, with the reason if this end aborted.
            large: The large results that were read from the streams.
            bare: Whether a request consists of a message only. Over HTTP it also has headers, which the SDK manages.
        """
        dialogue = cls(server, large)

        @asynccontextmanager
        async def beside() -> AsyncIterator[tuple[Any, Any]]:
            async with streams as (reader, writer):
                requests = dialogue._reading = Requests(reader, writer, lost, dialogue._hear)
                dialogue._requests = requests if bare else None
                yield requests, Answers(requests, writer)

        client = Client(
            beside(),
            cache=None,
            client_info=_CLIENT,
            elicitation_callback=dialogue._elicitations.answer,
        )
        async with client:
            _trust_no_schema(client)
            dialogue._client = client
            listening = asyncio.create_task(dialogue._listen(client))
            try:
                yield dialogue
            finally:
                listening.cancel()
                await asyncio.wait([listening])

    # For callers.

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        on_progress: OnProgress | None,
        on_log: OnLog | None,
        check: Check | None,
        person: Person | None,
    ) -> ToolOutcome:
        """Call a tool.

        Raises:
            ConnectionError: The connection has ended.
            McpServerError: The server refused, or returned an invalid result.
            InvalidInputError: The arguments cannot be sent as JSON.
        """
        client = self._open_client()
        with _failures(self._reading):
            if check is not None:
                await self._refresh()
                check(self._facts_of(tool))
            meta = None if on_log is None else await self._ask_for_logs(client)
            if tool == READ_RESOURCE and tool not in (self._tools or {}):
                with self._elicitations.call(person):
                    return outcome_of_resource(await client.read_resource(str(arguments.get("uri", ""))))
            key = object()
            if on_log is not None:
                self._logs[key] = on_log
            try:
                with self._elicitations.call(person):
                    result = await self._result(client, tool, arguments, on_progress, meta)
                encoded = self._large.take(result.meta)
                return outcome_of(result) if encoded is None else replace(outcome_of(result), encoded=encoded)
            finally:
                self._logs.pop(key, None)

    async def _result(
        self,
        client: Client,
        tool: str,
        arguments: dict[str, Any],
        on_progress: OnProgress | None,
        meta: types.RequestParamsMeta | None,
    ) -> types.CallToolResult:
        if self._requests is None or client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return await self._call_by_sdk(client, tool, arguments, on_progress, meta)
        return _result_of(await self._requests.send("tools/call", {"name": tool, "arguments": arguments}, on_progress))

    async def _call_by_sdk(
        self,
        client: Client,
        tool: str,
        arguments: dict[str, Any],
        on_progress: OnProgress | None,
        meta: types.RequestParamsMeta | None,
    ) -> types.CallToolResult:
        if on_progress is None:
            return await client.call_tool(tool, arguments, meta=meta)
        self._reporting += 1
        try:
            return await client.call_tool(tool, arguments, progress_callback=_as_coroutine(on_progress), meta=meta)
        finally:
            self._reporting -= 1

    @property
    def instructions(self) -> str:
        """What the server says about its use."""
        return (self._open_client().instructions or "")[:_MAX_INSTRUCTIONS]

    async def list_tools(self) -> list[ToolSpec]:
        """Return all tools of the server.

        Raises:
            ConnectionError: The connection has ended.
            McpServerError: The server does not answer, or exceeds `MAX_TOOLS` or `MAX_LIST`.
        """
        tools: list[ToolSpec] = []
        cursor: str | None = None
        seen: set[str] = set()
        size = 0
        self._reading.left_out.clear()
        with _failures(self._reading):
            for _ in range(_MAX_PAGES):
                page = await self._open_client().list_tools(cursor=cursor)
                size = _check_list(len(tools) + len(page.tools), size + len(page.model_dump_json()))
                tools += map(spec_of, page.tools)
                cursor = page.next_cursor
                if cursor is None or cursor in seen:  # some servers repeat the last cursor instead of omitting it
                    return tools + self._left_out()
                seen.add(cursor)
        raise McpServerError(f"failed: it has more than {_MAX_PAGES} pages")

    def _left_out(self) -> list[ToolSpec]:
        """Return the invalid tools, without their schemas."""
        return [ToolSpec(name, "", {}, invalid=reason) for name, reason in self._reading.left_out.items()]

    async def _refresh(self) -> None:
        """Fetch the tools if they may have changed."""
        if not self._stale and not self._listing.locked():
            return
        async with self._listing:
            if not self._stale:
                return
            self._stale = False
            try:
                async with asyncio.timeout(_SECONDS_TO_LIST):
                    self._tools, self._facts = {tool.name: tool for tool in await self.list_tools()}, {}
            except (McpServerError, TimeoutError):
                self._tools = None  # a server need not list its tools
            except BaseException:
                self._stale = True
                raise

    def _facts_of(self, tool: str) -> ToolFacts:
        if tool not in self._facts and self._tools is not None and tool in self._tools:
            self._facts[tool] = facts_of(self._tools[tool])
        return self._facts.get(tool, GONE)

    async def _ask_for_logs(self, client: Client) -> types.RequestParamsMeta | None:
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return cast(types.RequestParamsMeta, {types.LOG_LEVEL_META_KEY: _LOG_LEVEL})
        if not self._wants_logs and client.server_capabilities.logging is not None:
            self._wants_logs = True
            request = types.SetLevelRequest(params=types.SetLevelRequestParams(level=_LOG_LEVEL))
            try:
                await client.session.send_request(request, types.EmptyResult)
            except MCPError:
                return None  # the server ignores the log level
        return None

    def _open_client(self) -> Client:
        if self._client is None:
            raise ConnectionError
        return self._client

    # Notifications of the server.

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of the tools, which later protocol versions require. `_hear` gets the notifications."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._stale = self.announced = True
        except Exception as error:  # the tools stay usable without it
            _LOG.debug("the changes of an MCP server's tools are not reported: %r", error)

    def _hear(self, method: str, params: dict[str, Any]) -> bool:
        """Handle a notification. The SDK gets only the ones it needs, because it starts a task for each."""
        if method == "notifications/progress":
            return not self._reporting
        if method == "notifications/tools/list_changed":
            self._stale = self.announced = True
        elif method == "notifications/message" and self._logs:
            self._hear_log(params)
        return True

    def _hear_log(self, params: dict[str, Any]) -> None:
        # The protocol does not name the call of a log message.
        level, data = params.get("level"), params.get("data")
        if isinstance(level, str):
            text = data if isinstance(data, str) else json.dumps(data)
            for listener in [*self._logs.values()]:
                listener(level, text)


@contextmanager
def _failures(requests: Requests) -> Iterator[None]:
    """Translate the SDK's exceptions into our errors."""
    try:
        yield
    except MCPError as error:
        if requests.lost(error):
            raise ConnectionError(error.message) from error
        raise McpServerError(f"failed: {cut(error.message)} [{error.code}]") from error
    except ValidationError as error:
        raise McpServerError(f"returned something that is not a result: {cut(str(error))}") from error
    except PydanticSerializationError as error:
        raise InvalidInputError(f"the arguments cannot be sent as JSON: {error}") from error
    except McpServerError:
        raise
    except (RuntimeError, ValueError) as error:
        if isinstance(error, CellblockError):
            raise
        raise McpServerError(f"returned something invalid: {cut(str(error))}") from error


def _check_list(count: int, size: int) -> int:
    """Refuse a list that is too long, and return its size."""
    if count > MAX_TOOLS or size > MAX_LIST:
        raise McpServerError(f"failed: it has more than {MAX_TOOLS} tools or {MAX_LIST} bytes")
    return size


def _trust_no_schema(client: Client) -> None:
    """Turn off the SDK's validation of results against the server's schema.

    The validation runs in the event loop, and a schema can block the loop, by a pattern or with many rows. The
    module of a tool validates results in the session instead.
    """

    async def unchecked(name: str, result: types.CallToolResult) -> None:
        return None

    client.session.validate_tool_result = unchecked  # type: ignore[method-assign]


def _result_of(said: dict[str, Any]) -> types.CallToolResult:
    result = types.CallToolResult.model_validate({key: said[key] for key in _RESULT & said.keys()}, by_name=False)
    if not isinstance(result.structured_content, dict | None):
        raise ValueError("structured content that is not an object")  # noqa: TRY004  # not an argument of the wrong type
    return result


def _as_coroutine(on_progress: OnProgress) -> ProgressFnT:
    async def tell(progress: float, total: float | None, message: str | None) -> None:
        on_progress(progress, total, message)

    return tell
