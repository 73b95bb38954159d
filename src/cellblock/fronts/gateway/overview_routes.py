"""The activity of all sessions as live server-sent events; and the cells and decisions of one session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from cellblock.errors import CellblockError
from cellblock.fronts.gateway.access import link_of
from cellblock.fronts.gateway.answers import in_turns, json_bytes, json_pieces
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.events import with_pauses
from cellblock.fronts.gateway.routes import add
from cellblock.fronts.gateway.session_routes import ReadAny
from cellblock.fronts.problems import problem_of
from cellblock.model.overview import FoundSession
from cellblock.operations.data import Data
from cellblock.operations.overview import SearchSessions, Watch
from cellblock.service.daemon.link import SessionLink
from cellblock.service.store.tokens import Token

router = APIRouter(tags=["Overview"], route_class=CheckedRoute)

_LONGEST = 60.0
"""Seconds that a stream lasts. Its client reconnects for the rest."""


async def _found(request: Request, caller: Token, asked: SearchSessions) -> list[Data[FoundSession]]:
    """Return those found sessions that the token is for. An ended one may only share its name."""
    if not caller.session:
        return await link_of(request).call(asked)
    found = await link_of(request).call(SearchSessions(asked.words, 1000))
    own = (one for one in found if caller.session == one["kernel_id"] or (not one["ended"] and caller.session == one["name"]))
    return [*own][: asked.count]


add(router, SearchSessions, _found, any_session=True)


@router.get(
    "/events",
    response_class=Response,
    summary="Follow all sessions",
    responses={
        200: {"description": "Server-sent events: id and data of each.", "content": {"text/event-stream": {}}},
    },
)
async def events(
    request: Request,
    caller: ReadAny,
    after: Annotated[str, Query(max_length=40, description="The id of the last event that is known already.")] = "",
    last_event_id: Annotated[str, Header(alias="Last-Event-ID", max_length=40)] = "",
) -> Response:
    """Send what changes in the sessions that the token is for: what they do, what waits, what was refused, figures.

    The first event says what is there, or what has changed since another event. The stream ends after a minute; a client that
    reconnects with the id of the last event misses nothing.
    """
    changes = _changes(link_of(request), last_event_id or after, caller)
    return StreamingResponse(changes, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _changes(link: SessionLink, after: str, caller: Token) -> AsyncIterator[bytes]:
    until = asyncio.get_running_loop().time() + _LONGEST
    try:
        async with aclosing(with_pauses(link.follow(Watch(after)))) as parts:
            yield b": begun\n\n"  # so that the client knows at once that it is connected
            while (left := until - asyncio.get_running_loop().time()) > 0:
                try:
                    async with asyncio.timeout(left):
                        change = await anext(parts)
                except (TimeoutError, StopAsyncIteration):
                    return
                if change is None:
                    yield b": still here\n\n"
                    continue
                yield b"id: %b\ndata: " % change["position"].encode()
                async for piece in in_turns(json_pieces(seen_by(caller, change))):
                    yield piece
                yield b"\n\n"
    except CellblockError as error:
        yield b"event: problem\ndata: " + json_bytes(problem_of(error).to_dict()) + b"\n\n"


def seen_by(caller: Token, change: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a change that a caller may see. Ids of deleted sessions and calls are random, and reveal nothing."""
    if not caller.session:
        return change
    return {
        **change,
        "sessions": [one for one in change["sessions"] if caller.session in (one["name"], one["kernel_id"])],
        "approvals": [one for one in change["approvals"] if caller.session in (one["session_name"], one["session"])],
        "refusals": [one for one in change["refusals"] if caller.session in (one["session_name"], one["session"])],
        "samples": [],
    }
