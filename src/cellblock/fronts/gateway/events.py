"""Live events of an execution: server-sent events, and a WebSocket. A client that reconnects misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse

from cellblock.common.tasks import first_of
from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.gateway.access import caller_of, link_of, needs
from cellblock.fronts.gateway.answers import in_turns, json_bytes, json_pieces
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.session_routes import Read
from cellblock.fronts.problems import problem_of
from cellblock.model.untrusted import parse_json
from cellblock.operations.executions import Answer, Cancel, Follow, Lookup
from cellblock.service.store.tokens import Token

router = APIRouter(tags=["Execution"], route_class=CheckedRoute)

_HEARTBEAT = 15.0
"""Seconds after which a comment is sent, so that no proxy takes the connection for dead."""

MAX_MESSAGE = 1024 * 1024
"""Characters of a client's message: an answer to ``input()`` is the longest."""

After = Annotated[int, Query(ge=0, le=2**53, description="The number of the last event that is known already.")]


@router.get(
    "/executions/{execution}/events",
    response_class=Response,
    summary="Follow an execution",
    responses={
        200: {"description": "Server-sent events: id, event and data of each.", "content": {"text/event-stream": {}}},
    },
)
async def events(
    request: Request,
    execution: str,
    _: Read,
    after: After = 0,
    last_event_id: Annotated[str, Header(alias="Last-Event-ID", max_length=20)] = "",
) -> Response:
    """Send the events of an execution as they happen, until the last; to a client that reconnects, the missed ones."""
    link = link_of(request)
    await link.call(Lookup(execution))  # the status reports an unknown id
    known = int(last_event_id) if last_event_id.isascii() and last_event_id.isdecimal() else after
    return sent_events(link.follow(Follow(execution, known)), _head)


def _head(event: Mapping[str, Any]) -> bytes:
    return b"id: %d\nevent: %b\n" % (event["seq"], event["kind"].encode())


def sent_events(found: AsyncGenerator[dict[str, Any], None], head: Callable[[Mapping[str, Any]], bytes]) -> Response:
    """Return server-sent events as an answer: comments during pauses, and a problem at the end if the source fails.

    Args:
        found: The data of the events.
        head: Returns the lines of an event before its data.
    """
    return StreamingResponse(_written(found, head), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _written(
    found: AsyncGenerator[dict[str, Any], None], head: Callable[[Mapping[str, Any]], bytes]
) -> AsyncIterator[bytes]:
    yield b": begun\n\n"  # so that the client knows at once that it is connected
    async with aclosing(with_pauses(found, _HEARTBEAT)) as parts:
        try:
            async for event in parts:
                if event is None:
                    yield b": still here\n\n"
                    continue
                yield head(event) + b"data: "
                async for piece in in_turns(json_pieces(event)):
                    yield piece
                yield b"\n\n"
        except CellblockError as error:
            yield b"event: problem\ndata: " + json_bytes(problem_of(error).to_dict()) + b"\n\n"


async def with_pauses(
    found: AsyncGenerator[dict[str, Any], None], seconds: float
) -> AsyncGenerator[dict[str, Any] | None, None]:
    """Yield events as they arrive, and None after each pause of some seconds."""
    async with aclosing(found):
        while True:
            coming = asyncio.ensure_future(anext(found, False))
            try:
                while not (await asyncio.wait([coming], timeout=seconds))[0]:
                    yield None
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait([coming])
            event = coming.result()
            if event is False:
                return
            assert isinstance(event, dict)
            yield event


@router.websocket("/executions/{execution}/events")
async def events_by_web_socket(
    web_socket: WebSocket, execution: str, _: Annotated[Token, Depends(needs("read"))], after: After = 0
) -> None:
    """Send the events as JSON, one in each message. The client may send ``{"answer": LINE}`` and ``{"cancel": true}``."""
    link = link_of(web_socket)
    await link.call(Lookup(execution))
    await web_socket.accept()
    following = link.follow(Follow(execution, after))
    _listening, sending = await first_of(_listen(web_socket, execution), _send(web_socket, following))
    if not sending.cancelled():
        sending.result()


async def _send(web_socket: WebSocket, found: AsyncGenerator[dict[str, Any], None]) -> None:
    try:
        async with aclosing(found):
            async for event in found:
                await web_socket.send_text(json_bytes(event).decode())
    except CellblockError as error:
        await web_socket.close(1011, problem_of(error).code)
        return
    await web_socket.close()


async def _listen(web_socket: WebSocket, execution: str) -> None:
    link, may_run = link_of(web_socket), caller_of(web_socket).may("run")
    while True:
        try:
            said = parse_json(await web_socket.receive_text(), what="a message", most=MAX_MESSAGE)
        except WebSocketDisconnect:
            return
        except KeyError:
            await web_socket.close(1003, "a message must be text")
            return
        except InvalidInputError as error:
            await web_socket.close(1003, str(error)[:120])
            return
        match said if may_run else None:
            case {"answer": str(line)}:
                await link.call(Answer(execution), line.encode("utf-8", "replace"))
            case {"cancel": True}:
                await link.call(Cancel(execution))
            case _:
                await web_socket.close(1008, "send answer or cancel; both need the scope run")
                return
