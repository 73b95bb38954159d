"""Programs of a session: routes, and a WebSocket for the output, input and terminal of one program."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, WebSocket, WebSocketDisconnect

from cellblock.common.tasks import first_of
from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.gateway.access import caller_of, link_of, needs, problem_for
from cellblock.fronts.gateway.answers import json_bytes, problem_response
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.model.programs import ProgramOutput
from cellblock.model.untrusted import parse_json
from cellblock.operations.base import Request
from cellblock.operations.programs import (
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    WriteProcess,
)
from cellblock.service.store.tokens import Token

router = APIRouter(tags=["Programs"], route_class=CheckedRoute)

_WAIT = 30_000
"""Milliseconds that the daemon waits for output before it answers without output."""

_MOST = 64 * 1024
"""Bytes or characters that one message may have. The error says so, and the client can send several."""

_UNWRITTEN = 8
"""Messages that wait for a program to read them. Then the client has to wait, also with signals."""

_STREAMS = {"stdout": b"\x01", "stderr": b"\x02"}

Since = Annotated[int, Query(ge=0, le=2**53, description="The position to begin at: how many bytes of output came before.")]


@router.websocket("/sessions/{session}/processes/{process}/stream")
async def stream(
    socket: WebSocket,
    session: str,
    process: str,
    _: Annotated[Token, Depends(needs("read"))],
    since: Since = 0,
    binary: bool = False,
) -> None:
    """Send a program's output as it comes, and receive its input, signals, and its terminal's size."""
    carried = _Stream(socket, session, process, since, binary=binary)
    try:
        await link_of(socket).call(ReadProcess(session, process, since))
    except CellblockError as error:  # the status reports an unknown id
        await socket.send_denial_response(problem_response(problem_for(socket, error)))
        return
    await socket.accept()
    tasks = await first_of(carried.send(), carried.listen(), carried.write())
    await _close(socket, next((task.exception() for task in tasks if not task.cancelled() and task.exception()), None))


async def _close(socket: WebSocket, error: BaseException | None) -> None:
    try:
        match error:
            case None:
                await socket.close()
            case WebSocketDisconnect():
                pass
            case InvalidInputError():
                await socket.close(1008, str(error)[:120])
            case CellblockError():
                await socket.close(1011, str(error)[:120])
            case _:
                raise error
    except (RuntimeError, WebSocketDisconnect):
        pass  # the client has left


class _Stream:
    """A client that follows a program. It buffers one answer of the daemon, and a few messages of the client."""

    def __init__(self, socket: WebSocket, session: str, process: str, since: int, *, binary: bool) -> None:
        self._socket = socket
        self._of = (session, process)
        self._position = since
        self._binary = binary
        self._link = link_of(socket)
        self._may_run = caller_of(socket).may("run")
        self._input: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue(_UNWRITTEN)

    async def send(self) -> None:
        """Send output until there is no more, and then the program's outcome.

        Output counts as read once it was sent. If all output is kept, a slow client makes the program wait.
        """
        while True:
            output: Any = await self._link.call(ReadProcess(*self._of, self._position, _WAIT))
            for piece in output["pieces"]:
                await self._send(piece)
            self._position = output["position"]
            if output["finished"]:
                end = {"position": self._position, "result": output["result"]}
                await self._socket.send_text(json_bytes(end).decode())
                return

    async def _send(self, piece: dict[str, Any]) -> None:
        if not self._binary:
            await self._socket.send_text(json_bytes(piece).decode())
            return
        found = ProgramOutput.from_dict(piece)
        if found.offset != self._position:
            await self._socket.send_text(json_bytes({"position": found.offset}).decode())
        self._position = found.offset + len(found.data)
        await self._socket.send_bytes(_STREAMS[found.stream] + found.data)

    async def listen(self) -> None:
        """Handle the client's messages, until it leaves.

        Raises:
            InvalidInputError: The message is invalid, or the client may not send it.
        """
        while (event := await self._socket.receive())["type"] == "websocket.receive":
            data: bytes | str = event.get("bytes") or event.get("text") or ""
            check_message(data, may_run=self._may_run)
            if isinstance(data, bytes):
                await self._input.put((data, False))
            else:
                await self._take(_read(data))
        raise WebSocketDisconnect

    async def _take(self, message: Any) -> None:
        match message:
            case {"input": str(text), **rest} if not rest:
                await self._input.put((text.encode("utf-8", "replace"), False))
            case {"end": True, **rest} if not rest:
                await self._input.put((b"", True))
            case {"size": [rows, columns], **rest} if not rest and _counts(rows, columns):
                await self._ask(ResizeProcess(*self._of, rows, columns))
            case {"signal": number, **rest} if not rest and _counts(number):
                await self._ask(SignalProcess(*self._of, number))
            case _:
                raise InvalidInputError(
                    'send bytes, {"input": TEXT}, {"end": true}, {"size": [ROWS, COLUMNS]} or {"signal": N}'
                )

    async def write(self) -> None:
        """Write the client's input. A program that does not read makes the client wait."""
        while True:
            data, end = await self._input.get()
            await self._ask(WriteProcess(*self._of, end), data)

    async def _ask(self, request: Request[bool], body: bytes = b"") -> None:
        await self._link.call(request, body)


def check_message(data: bytes | str, *, may_run: bool) -> None:
    """Check that a client may send a message.

    Raises:
        InvalidInputError: The client may not.
    """
    if not may_run:
        raise InvalidInputError("to send anything, a token needs the scope run")
    if len(data) > _MOST:
        raise InvalidInputError(f"a message has at most {_MOST:,} bytes: send several")


def _counts(*numbers: object) -> bool:
    return all(type(number) is int and 0 < number < 1 << 16 for number in numbers)


def _read(text: str) -> Any:
    return parse_json(text, what="a text message")
