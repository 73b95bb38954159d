"""The activity of all sessions as live server-sent events; and the cells and decisions of one session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from cellblock.fronts.gateway.access import link_of
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.events import sent_events
from cellblock.fronts.gateway.routes import add
from cellblock.fronts.gateway.session_routes import ReadAny
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
    return sent_events(changes, lambda change: b"id: %b\n" % change["position"].encode())


async def _changes(link: SessionLink, after: str, caller: Token) -> AsyncGenerator[dict[str, Any], None]:
    until = asyncio.get_running_loop().time() + _LONGEST
    async with aclosing(link.follow(Watch(after))) as changes:
        while True:
            try:
                async with asyncio.timeout_at(until):
                    change = await anext(changes)
            except (TimeoutError, StopAsyncIteration):
                return
            yield seen_by(caller, change)


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
