"""The Jupyter kernel API: kernels, sessions and channels, for any Jupyter client."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Response, WebSocket, WebSocketDisconnect
from fastapi.requests import HTTPConnection
from pydantic import BaseModel, Field

from cellblock.common.tasks import first_of
from cellblock.common.version import __version__
from cellblock.errors import AccessError, NotFoundError, ProtocolError
from cellblock.fronts.gateway.access import caller_of, link_of, needs
from cellblock.fronts.gateway.answers import problem_response
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.kernelspecs import check_installed
from cellblock.fronts.gateway.session_routes import create
from cellblock.fronts.jupyter.kernel import JupyterKernel
from cellblock.fronts.jupyter.kernels import TAG, JupyterKernels, session_id
from cellblock.fronts.jupyter.messages import V1, Message, read_plain, read_v1
from cellblock.fronts.problems import Problem
from cellblock.model.sessions import OWN_KERNEL, SessionRecord
from cellblock.operations.sessions import Status
from cellblock.service.store.tokens import Token

router = APIRouter(prefix="/api", tags=["Jupyter"], route_class=CheckedRoute)

_MAX_UNREAD = 64 * 1024 * 1024
"""Bytes that may wait for a client; one that does not read loses its connection."""

_TURN = 20
"""Messages that are taken or sent in one turn of the loop."""

_read = Depends(needs("read", any_session=True))
_run = Depends(needs("run", any_session=True))


class Kernel(BaseModel):
    """A kernel: a named session."""

    id: str
    name: str
    last_activity: str
    execution_state: str
    connections: int
    session_name: str


class Wanted(BaseModel):
    """A kernel to start.

    Attributes:
        name: The kernelspec. Every name that begins with ``python`` means cellblock's own kernel.
        env: Variables from Jupyter's servers. ``KERNEL_ID`` is ignored, as every session has an id of its own.
        options: Options of the session, as in ``POST /kernels``; Jupyter's clients send none.
    """

    name: str = Field(OWN_KERNEL, max_length=200)
    path: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)


def kernels_of(connection: HTTPConnection) -> JupyterKernels:
    kernels: JupyterKernels = connection.app.state.kernels
    return kernels


async def allowed(connection: HTTPConnection, kernel: str) -> SessionRecord:
    """Return the session of a kernel, if the caller may use it.

    Raises:
        AccessError, NotFoundError: The caller may not use it; it does not exist.
    """
    caller: Token = caller_of(connection)
    try:
        record = SessionRecord.from_dict(await link_of(connection).call(Status(session_id(kernel))))
    except NotFoundError:
        if caller.session:
            raise AccessError("this token is for another session") from None
        raise
    check_session_of(caller, record)
    return record


def check_session_of(caller: Token, record: SessionRecord) -> None:
    """Check that a caller may use a session.

    Raises:
        AccessError: The caller's token is for another session.
    """
    if caller.session not in ("", record.name, record.kernel_id):
        raise AccessError("this token is for another session")


async def _kernel(connection: HTTPConnection, kernel: str) -> JupyterKernel:
    return await kernels_of(connection).find((await allowed(connection, kernel)).kernel_id)


@router.get("", summary="Which version this is")
async def version() -> dict[str, str]:
    """Answer as Jupyter's servers do."""
    return {"version": __version__}


@router.get("/me", summary="Who the caller is", dependencies=[_read])
async def me() -> dict[str, Any]:
    """Answer as Jupyter's servers do."""
    return {"identity": {"username": "cellblock", "name": "cellblock"}, "permissions": {}}


@router.get("/status", summary="How much there is", dependencies=[_read])
async def status(connection: HTTPConnection) -> dict[str, Any]:
    """Count the kernels that the caller may use."""
    found = await list_kernels(connection)
    last = max((kernel.last_activity for kernel in found), default=None)
    return {"kernels": len(found), "connections": sum(kernel.connections for kernel in found), "last_activity": last}


# -- kernels -------------------------------------------------------------------------------------------------------------


@router.get("/kernels", summary="List the kernels", dependencies=[_read])
async def list_kernels(connection: HTTPConnection) -> list[Kernel]:
    """List all named sessions, also those that no Jupyter client has made."""
    caller = caller_of(connection)
    found = [Kernel(**model) for model in await kernels_of(connection).models()]
    mine = {caller.session}
    with contextlib.suppress(ValueError):
        mine.add(str(uuid.UUID(hex=caller.session)))
    return [kernel for kernel in found if not caller.session or kernel.id in mine or kernel.session_name in mine]


@router.post("/kernels", summary="Start a kernel", status_code=201, dependencies=[_run])
async def start_kernel(connection: HTTPConnection, response: Response, wanted: Wanted | None = None) -> Kernel:
    """Make a session."""
    wanted = wanted or Wanted(name=OWN_KERNEL)
    made = await start(connection, wanted.name, wanted.options)
    response.headers["Location"] = f"/api/kernels/{made.id}"
    return made


async def start(connection: HTTPConnection, name: str, options: Mapping[str, Any] | None = None) -> Kernel:
    """Create a session for a kernelspec.

    Raises:
        AccessError: The caller's token is for one session, or may not choose options.
        NotFoundError: The kernelspec does not exist.
    """
    if caller_of(connection).session:
        raise AccessError("this token is for one session, and cannot make others")
    kernel_type = OWN_KERNEL if name.startswith("python") else name
    await check_installed(kernel_type)
    session = f"jupyter-{uuid.uuid4().hex[:8]}"
    made = await create(connection, caller_of(connection), session, options, TAG, kernel_type=kernel_type)
    return await _described(connection, made["kernel_id"])


async def _described(connection: HTTPConnection, session: str) -> Kernel:
    record = SessionRecord.from_dict(await link_of(connection).call(Status(session)))
    return Kernel(**kernels_of(connection).model(record))


@router.get("/kernels/{kernel}", summary="Describe a kernel", dependencies=[_read])
async def get_kernel(connection: HTTPConnection, kernel: str) -> Kernel:
    """Describe a kernel."""
    return Kernel(**kernels_of(connection).model(await allowed(connection, kernel)))


@router.delete("/kernels/{kernel}", summary="End a kernel", status_code=204, dependencies=[_run])
async def end_kernel(connection: HTTPConnection, kernel: str) -> None:
    """End its session."""
    await (await _kernel(connection, kernel)).destroy()


@router.post("/kernels/{kernel}/interrupt", summary="Stop what runs", status_code=204, dependencies=[_run])
async def interrupt_kernel(connection: HTTPConnection, kernel: str) -> None:
    """Stop the cell that runs."""
    await (await _kernel(connection, kernel)).interrupt()


@router.post("/kernels/{kernel}/restart", summary="Restart a kernel", dependencies=[_run])
async def restart_kernel(connection: HTTPConnection, kernel: str) -> Kernel:
    """Give its session a fresh interpreter."""
    found = await _kernel(connection, kernel)
    await found.restart()
    return await _described(connection, found.session)


# -- channels ------------------------------------------------------------------------------------------------------------


class Channels:
    """A client on a WebSocket.

    Attributes:
        session: The client's id for its side of the conversation.
        connected: Whether the client is connected.
    """

    def __init__(self, socket: WebSocket, session: str, *, v1: bool) -> None:
        """Set up.

        Args:
            socket: The WebSocket.
            session: The client's id for its side of the conversation.
            v1: Whether the client uses the subprotocol `V1`.
        """
        self.session = session
        self.connected = True
        self._socket = socket
        self._v1 = v1
        self._unread: deque[str | bytes] = deque()
        self._size = 0
        self._lost = False
        self._changed = asyncio.Event()
        self._sent, self._taken = Turns(), Turns()

    def send(self, message: Message) -> None:
        """Send a message, without waiting."""
        if self._lost:
            return
        data = message.v1 if self._v1 else message.plain
        self._unread.append(data)
        self._size += len(data)
        self._lost = too_slow(self._size)
        self._changed.set()

    async def write(self) -> None:
        """Send queued messages, until the client leaves or is too slow."""
        while not self._lost:
            while self._unread and not self._lost:
                data = self._unread.popleft()
                self._size -= len(data)
                await (self._socket.send_text(data) if isinstance(data, str) else self._socket.send_bytes(data))
                await self._sent.give_way()
            self._changed.clear()
            if not self._unread:
                await self._changed.wait()
        self._unread.clear()
        await self._socket.close(1013, "the client does not read")

    async def read(self, kernel: JupyterKernel) -> None:
        """Handle the client's messages until it disconnects.

        Raises:
            ProtocolError: The data is not a message.
        """
        while (event := await self._socket.receive())["type"] == "websocket.receive":
            data: str | bytes = event.get("bytes") or event.get("text") or ""
            kernel.take((read_v1 if self._v1 else read_plain)(data), self)
            await self._taken.give_way()


class Turns:
    """Regular yields to other tasks: receiving buffered data and sending to a fast client never suspend."""

    def __init__(self) -> None:
        self._count = 0

    async def give_way(self) -> None:
        """Call this after each message."""
        self._count += 1
        if self._count % _TURN == 0:
            await asyncio.sleep(0)


def too_slow(size: int) -> bool:
    """Return whether more bytes wait for a client than are allowed."""
    return size > _MAX_UNREAD


@router.websocket("/kernels/{kernel}/channels", dependencies=[_run])
async def channels(socket: WebSocket, kernel: str) -> None:
    """Forward the messages of one client."""
    try:
        found = await _kernel(socket, kernel)
    except NotFoundError as error:
        await socket.send_denial_response(problem_response(Problem(404, "not_found", str(error))))
        return
    v1 = V1 in socket.scope.get("subprotocols", [])
    client = Channels(socket, socket.query_params.get("session_id", "")[:512] or uuid.uuid4().hex, v1=v1)
    await socket.accept(V1 if v1 else None)
    found.attach(client)
    try:
        _, reading = await first_of(client.write(), client.read(found))
    finally:
        found.detach(client)
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await _say_goodbye(socket, reading)


async def _say_goodbye(socket: WebSocket, reading: asyncio.Task[None]) -> None:
    if not reading.cancelled() and isinstance(error := reading.exception(), ProtocolError):
        await socket.close(1003, str(error)[:120])
