"""Fast JSON-RPC requests for tool calls, on a connection that the SDK has opened.

The SDK handles the rest: the handshake, lists, and requests of the server. A request through the SDK passes four layers,
each with its own models, scopes and streams. That costs 0.1 ms, and a hundred objects that Python's garbage collector
visits again and again. Here it is a future.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Any, Self

import anyio
from anyio.abc import AsyncResource
from mcp import MCPError
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from cellblock.common import telemetry
from cellblock.tools.calling.content import OnProgress
from cellblock.tools.mcp.tool_list import make_valid
from cellblock.tools.mcp.undecodable import given_to, instead

_LOG = logging.getLogger("cellblock.tools")

_FIRST = 2**30
"""The id of our first request. The SDK counts from 1; a server may not expect texts here, or more than 31 bits."""

_MAX_PENDING = 32
"""Maximum unanswered requests of the server, and of invalid messages in succession. The SDK has a task for each."""

_SECONDS_TO_CANCEL = 1.0  # a server that does not read misses it

_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")
"""The SDK's own, which stands for a lost connection. A server may send the same code for anything else."""


class Requests(AsyncResource):
    """cellblock's requests on a connection, and the stream of all other messages for the SDK.

    Args:
        reader: The transport's read stream.
        writer: The transport's write stream.
        ended: Called at the end of the stream, which the SDK does not report, with the reason if this end aborted.
        hear: Called with the method and parameters of each notification that belongs to no request of this object. Returns
            whether it has handled it; the SDK gets the others.

    Attributes:
        closed: Whether the connection has ended.
        left_out: The invalid tools of the server, with the reasons.
    """

    def __init__(
        self, reader: Any, writer: Any, ended: Callable[[str], None], hear: Callable[[str, dict[str, Any]], bool]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._asked = self._strays = 0
        self._complaint = ""
        self._ended = ended
        self._hear = hear
        self._numbers = count(_FIRST)
        self._waiting: dict[object, tuple[asyncio.Future[dict[str, Any] | ErrorData], OnProgress | None]] = {}
        self.closed = False
        self.left_out: dict[str, str] = {}

    async def send(self, method: str, params: dict[str, Any], on_progress: OnProgress | None = None) -> dict[str, Any]:
        """Send a request and wait for its result. A cancellation is forwarded to the server.

        Args:
            method: Such as ``tools/call``.
            params: The parameters.
            on_progress: Called with the progress, the total and a message (both may be None) at each report of the server.

        Returns:
            The result, as the server sent it.

        Raises:
            ConnectionError: The connection has ended.
            MCPError: The server refused.
        """
        if self.closed:
            raise ConnectionError(_CLOSED.message)
        number = next(self._numbers)
        meta: dict[str, Any] = telemetry.outgoing().copy()  # names defined by the protocol: traceparent, tracestate
        if on_progress is not None:
            meta["progressToken"] = number
        if meta:
            params = {**params, "_meta": meta}
        answer: asyncio.Future[dict[str, Any] | ErrorData] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, on_progress
        try:
            await self._write(JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params))
            outcome = await answer
        except asyncio.CancelledError:
            await self._cancel(number)
            raise
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionError(_CLOSED.message) from error
        finally:
            del self._waiting[number]
        if outcome is _CLOSED:
            raise ConnectionError(_CLOSED.message)
        if isinstance(outcome, ErrorData):
            raise MCPError(code=outcome.code, message=outcome.message, data=outcome.data)
        return outcome

    def lost(self, error: MCPError) -> bool:
        """Return whether the SDK raised an error because the connection ended, not because of the server."""
        return self.closed and (error.code, error.message) == (_CLOSED.code, _CLOSED.message)

    async def _cancel(self, number: int) -> None:
        params = {"requestId": number, "reason": "caller cancelled"}
        # Shielded from the scope, which may be cancelled; a task that is cancelled again does not wait.
        with anyio.move_on_after(_SECONDS_TO_CANCEL, shield=True):
            try:
                await self._write(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # there is nothing left to cancel

    async def _write(self, message: JSONRPCRequest | JSONRPCNotification) -> None:
        await self._writer.send(SessionMessage(message))

    def _take(self, message: SessionMessage | Exception) -> bool:
        """Handle a message if it belongs to one of these requests."""
        said = None if isinstance(message, Exception) else message.message
        if isinstance(said, JSONRPCResponse | JSONRPCError):
            waiting = None if said.id is None else self._waiting.get(coerce_request_id(said.id))
            if waiting is None:
                return False
            if not waiting[0].done():
                waiting[0].set_result(said.result if isinstance(said, JSONRPCResponse) else said.error)
            return True
        if isinstance(said, JSONRPCNotification):
            return self._notified(said.method, said.params or {})
        return False

    def _notified(self, method: str, params: dict[str, Any]) -> bool:
        try:
            return (method == "notifications/progress" and self._tell(params)) or self._hear(method, params)
        except Exception:  # the caller's log handler failed; this task reads for all calls and must continue
            _LOG.exception("the handler of an MCP server's notifications failed")
            return True

    def _tell(self, params: dict[str, Any]) -> bool:
        token, done = as_request_id(params.get("progressToken")), _number(params.get("progress"))
        _, on_progress = (None, None) if token is None else self._waiting.get(coerce_request_id(token), (None, None))
        if on_progress is None:
            return False
        message = params.get("message")
        if done is not None:
            try:
                on_progress(done, _number(params.get("total")), message if isinstance(message, str) else None)
            except Exception:  # the caller's handler failed; this task reads for all calls and must continue
                _LOG.exception("the handler of a tool call's progress failed")
        return True

    def _is_too_much(self, message: SessionMessage | Exception) -> bool:
        """Count unanswered requests of the server, and invalid messages."""
        if isinstance(message, Exception):
            self._strays += 1
            if self._strays >= _MAX_PENDING:
                self._complaint = f"it sent {_MAX_PENDING} messages that are not valid"
            return bool(self._complaint)
        self._strays = 0
        if isinstance(message.message, JSONRPCRequest):
            self._asked += 1
            if self._asked > _MAX_PENDING:
                self._complaint = f"it sent more than {_MAX_PENDING} requests and did not read the answers"
        return bool(self._complaint)

    async def answer(self, message: SessionMessage) -> None:
        """Write a message of the SDK."""
        try:
            await self._writer.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._close()  # before the reader notices
            raise
        if not hasattr(message.message, "method"):
            self._asked -= 1

    def _close(self) -> None:
        self.closed = True
        for answer, _ in self._waiting.values():
            if not answer.done():
                # Not an exception: its task may be cancelled as well, and asyncio logs exceptions that are not retrieved.
                answer.set_result(_CLOSED)

    # The interface of the SDK's read stream.

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message for the SDK."""
        try:
            while True:
                message: SessionMessage | Exception = await self._reader.receive()
                if isinstance(message, ValueError):
                    message = instead(given_to(message), message) or message
                if self._take(message):
                    continue
                if self._is_too_much(message):
                    raise anyio.ClosedResourceError
                if not isinstance(message, Exception) and isinstance(message.message, JSONRPCResponse):
                    self.left_out |= make_valid(message.message.result)
                return message
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._close()
            self._ended(self._complaint)
            raise

    async def aclose(self) -> None:
        """Close the stream; requests that wait for an answer fail."""
        self._close()
        await self._reader.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Answers(AsyncResource):
    """The stream that the SDK writes to, in addition to these requests.

    Args:
        requests: The requests.
        writer: The transport's write stream.
    """

    def __init__(self, requests: Requests, writer: Any) -> None:
        self._requests = requests
        self._writer = writer

    async def send(self, item: SessionMessage, /) -> None:
        await self._requests.answer(item)

    async def aclose(self) -> None:
        await self._writer.aclose()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
