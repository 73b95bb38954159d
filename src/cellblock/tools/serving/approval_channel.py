"""Approvals over a WebSocket: the tool server's side, and the deciding client's.

JSON-RPC 2.0. The server sends ``approve`` with the request's id, and ``withdraw`` if it is withdrawn; the client answers
``true``, ``false``, or ``{"accepted": true, "always": "tool"}``. See docs/approvals.md.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError, StateError
from cellblock.model.untrusted import parse_json
from cellblock.tools.approvals.request import ApprovalRequest

if TYPE_CHECKING:
    from starlette.websockets import WebSocket as StarletteWebSocket
    from websockets.asyncio.client import ClientConnection

    from cellblock.tools.serving.starlette import Adapted
    from cellblock.tools.serving.websocket import WebSocket as OwnWebSocket

    WebSocket = OwnWebSocket | StarletteWebSocket

ApprovalCallback = Callable[[ApprovalRequest], Awaitable[None] | bool]
"""Decides about a request: a coroutine function that accepts or rejects it, or a function that returns True or False."""

_MAX_REQUEST = 64 * 1024 * 1024
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0  # seconds before reconnecting
_LOG = logging.getLogger("cellblock.tools")


class ApprovalChannel:
    """The server's end of a channel. One client at a time decides, in any order."""

    def __init__(self, approval_required: bool = False, approval_timeout: float | None = 60) -> None:
        """Set up.

        Args:
            approval_required: Whether `request` asks the client; otherwise it grants everything.
            approval_timeout: Seconds that `request` waits, or None for no limit.
        """
        self.approval_required = approval_required
        self.approval_timeout = approval_timeout
        self._websocket: OwnWebSocket | Adapted | None = None
        self._pending: dict[str, ApprovalRequest] = {}
        # The send queue. Requests that have ended before their turn are skipped, so that a client that does not read costs
        # little.
        self._unsent: dict[str, ApprovalRequest] = {}
        self._withdrawals: deque[str] = deque()
        self._to_send = asyncio.Event()
        self._closed = asyncio.Event()
        self._closed.set()
        # FastAPI evaluates the annotation of `connect` in this module.
        if (starlette := sys.modules.get("starlette.websockets")) is not None:
            globals()["WebSocket"] = starlette.WebSocket

    @property
    def open(self) -> bool:
        """Whether an `ApprovalClient` is connected."""
        return self._websocket is not None

    async def connect(self, websocket: WebSocket) -> None:
        """Accept a connection, and serve it until it ends. A second concurrent connection is refused.

        Args:
            websocket: The connection, also one of FastAPI or Starlette: ``app.websocket("/approval")(channel.connect)``.
        """
        from cellblock.tools.serving.starlette import adapted

        await self._serve(adapted(websocket))

    async def _serve(self, websocket: OwnWebSocket | Adapted) -> None:
        if self._websocket is not None:
            # The first one stays: a second client must not take over its approvals.
            await websocket.reject(409, "another approval client is connected")
            return
        self._websocket = websocket
        await websocket.accept()
        self._closed.clear()
        self._withdrawals.clear()
        sending = asyncio.create_task(self._send(websocket))
        try:
            await self._receive(websocket)
        finally:
            self._websocket = None
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            for request in list(self._pending.values()):
                request.withdraw("the approval client disconnected")
            self._closed.set()

    async def disconnect(self) -> None:
        """Close the connection. All pending requests fail."""
        for request in list(self._pending.values()):
            request.withdraw("the approval channel was closed")
        if self._websocket is not None:
            await self._websocket.close()

    async def join(self, timeout: float = 5) -> None:
        """Wait until the connection is closed.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimeoutError: It is still open.
        """
        async with asyncio.timeout(timeout):
            await self._closed.wait()

    async def request(self, server_name: str, tool_name: str, tool_args: Mapping[str, Any]) -> bool:
        """Request approval of one call.

        Args:
            server_name: Name of the MCP server.
            tool_name: Name of the tool.
            tool_args: The arguments.

        Returns:
            True if it is accepted or no approval is required; False if it is rejected.

        Raises:
            RuntimeError: No client is connected, or it has disconnected.
            TimeoutError: There was no decision in time.
        """
        if not self.approval_required:
            return True
        request = ApprovalRequest(server_name, tool_name, tool_args)
        self.offer(request)
        try:
            async with asyncio.timeout(self.approval_timeout):
                accepted = await request.response()
        finally:
            request.withdraw("no decision arrived in time")
        if request.state == "withdrawn":
            raise StateError(f"The approval of {server_name}.{tool_name} failed: {request.reason}.")
        return accepted

    def offer(self, request: ApprovalRequest) -> None:
        """Send a request to the client; its answer decides it.

        Args:
            request: The request.

        Raises:
            StateError: No client is connected.
        """
        if self._websocket is None:
            raise StateError("no ApprovalClient is connected: connect one, or add a rule")
        self._pending[request.id] = request
        request.add_done_callback(self._over)
        self._unsent[request.id] = request
        self._to_send.set()

    def _over(self, request: ApprovalRequest) -> None:
        del self._pending[request.id]
        was_sent = self._unsent.pop(request.id, None) is None
        if was_sent and request.state == "withdrawn" and self._websocket is not None:
            params = {"id": request.id, "reason": request.reason}
            self._withdrawals.append(json.dumps({"jsonrpc": "2.0", "method": "withdraw", "params": params}))
            self._to_send.set()

    async def _send(self, websocket: OwnWebSocket | Adapted) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            while (text := self._next()) is not None:
                await websocket.send(text)
                await asyncio.sleep(0)  # sending does not wait while the client reads

    def _next(self) -> str | None:
        if self._withdrawals:
            return self._withdrawals.popleft()
        if not self._unsent:
            return None
        request = self._unsent.pop(next(iter(self._unsent)))
        params = {
            "server_name": request.server_name,
            "tool_name": request.tool_name,
            "tool_args": request.tool_args,
            "kind": request.kind,
            "changed": request.changed,
        }
        return json.dumps({"jsonrpc": "2.0", "id": request.id, "method": "approve", "params": params})

    async def _receive(self, websocket: OwnWebSocket | Adapted) -> None:
        while (text := await websocket.receive()) is not None:
            try:
                self._answered(text)
            except InvalidInputError as error:
                _LOG.warning("refused a message of an approval client: %s", error)
                await websocket.close(1008, "the message is not an answer to a request")
                return

    def _answered(self, text: str) -> None:
        data = parse_json(text, what="an answer")
        if not isinstance(data, dict) or not isinstance(data.get("id"), str):
            raise InvalidInputError("an answer is an object with an id")
        answer = data.get("result")
        if not isinstance(answer, dict):
            answer = {"accepted": answer}
        accepted, always = answer.get("accepted"), answer.get("always")
        if not isinstance(accepted, bool) or always not in (None, "tool", "call"):
            raise InvalidInputError("the result must be true or false")
        request = self._pending.get(data["id"])
        if request is None:
            _LOG.info("ignored an answer to a request that is not pending")
            return
        request.settle("accepted" if accepted else "rejected", always if accepted else None)


class ApprovalClient:
    """A client of a `ToolServer` that lets a callback decide each of its requests.

    Example::

        async def on_approval_request(request: ApprovalRequest):
            print(f"Approval request: {request}")
            await request.accept()

        async with ApprovalClient(callback=on_approval_request):
            ...
    """

    def __init__(
        self, callback: ApprovalCallback, host: str = "localhost", port: int = 8900, *, token: str | None = None
    ) -> None:
        """Set up.

        Args:
            callback: Called with each request, in a separate task. If it raises, the request is rejected. A plain function
                returns True or False; it must not block.
            host: Hostname of the tool server.
            port: Port of the tool server.
            token: Token of the tool server, if needed.
        """
        self._callback = callback
        self._url = f"ws://{host}:{port}/approval"
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._connection: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._deciding: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Connect to the tool server.

        Raises:
            StateError: It is already connected, or no tool server accepts it.
            UnsupportedError: The extra client is not installed.
        """
        require_extra("client", "approval clients")
        if self._connection is not None:
            raise StateError("The approval client is already connected.")
        self._connection = await self._open()
        self._reading = asyncio.create_task(self._keep_reading(self._connection))

    async def disconnect(self) -> None:
        """Disconnect. Pending calls fail in the code that made them."""
        if self._connection is None or self._reading is None:
            return
        reading, self._reading = self._reading, None
        tasks = [reading, *self._deciding]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection, self._connection = self._connection, None
        await connection.close()

    async def _open(self) -> ClientConnection:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        try:
            # Never through a proxy: the connection is direct.
            return await connect(
                self._url, additional_headers=self._headers, max_size=_MAX_REQUEST, proxy=None, compression=None
            )
        except InvalidStatus as error:
            said = (error.response.body or b"")[:200].decode("utf-8", "replace").strip()
            raise StateError(f"The tool server at {self._url} refused the approval client: {said or error}") from error
        except (OSError, WebSocketException) as error:
            raise StateError(f"No connection to the tool server at {self._url}: {error}") from error

    async def _keep_reading(self, connection: ClientConnection) -> None:
        while True:
            await self._read(connection)
            _LOG.warning("the connection to the tool server at %s was lost; connecting again", self._url)
            connection = self._connection = await self._open_again()
            _LOG.warning("connected to the tool server at %s again", self._url)

    async def _open_again(self) -> ClientConnection:
        wait = _FIRST_WAIT
        while True:
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
            try:
                return await self._open()
            except StateError as error:
                _LOG.debug("%s", error)

    async def _read(self, connection: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        requests: dict[str, ApprovalRequest] = {}
        try:
            while True:
                message = parse_json(await connection.recv(), what="a request", most=_MAX_REQUEST)
                params = message["params"]
                if message["method"] == "withdraw":
                    if (taken := requests.pop(params["id"], None)) is not None:
                        taken.withdraw(params["reason"])
                    continue
                request = self._request(connection, message["id"], params)
                requests[request.id] = request
                request.add_done_callback(lambda over: requests.pop(over.id, None))
                task = asyncio.create_task(self._decide(request))
                self._deciding.add(task)
                task.add_done_callback(self._deciding.discard)
        except (ConnectionClosed, KeyError, TypeError, ValueError) as error:
            if not isinstance(error, ConnectionClosed):
                _LOG.error("the tool server sent a message other than an approval request: %r", error)
                await connection.close(1008)
            for request in list(requests.values()):
                request.withdraw("the connection to the tool server is closed")

    def _request(self, connection: ClientConnection, number: str, params: Mapping[str, Any]) -> ApprovalRequest:
        async def respond(accepted: bool) -> None:
            result = {"accepted": True, "always": request.always} if request.always else accepted
            await connection.send(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}))

        request = ApprovalRequest(
            params["server_name"],
            params["tool_name"],
            params["tool_args"],
            respond,
            kind=params["kind"],
            changed=params.get("changed", ""),
            id=number,
        )
        return request  # `respond` reads its scope

    async def _decide(self, request: ApprovalRequest) -> None:
        try:
            decided = self._callback(request)
            if inspect.isawaitable(decided):
                await decided
            elif isinstance(decided, bool):
                await (request.accept() if decided else request.reject())
            else:
                raise TypeError(f"a callback that is not a coroutine function returns True or False, not {decided!r}")
        except Exception:  # the caller's callback may raise anything
            _LOG.exception("the approval callback failed; %s.%s is rejected", request.server_name, request.tool_name)
            if request.state == "pending":
                await request.reject()
