"""Pending approvals, and decisions about them, in the sessions that a token is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request

from cellblock.errors import NotFoundError
from cellblock.fronts.gateway.access import link_of
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.routes import add
from cellblock.operations.approvals import Allowed, Decide, Pending, Precedents, Revoke
from cellblock.service.store.tokens import Token

router = APIRouter(tags=["Approvals"], route_class=CheckedRoute)


async def _decided(request: Request, caller: Token, asked: Decide) -> list[str]:
    return await link_of(request).call(replace(asked, session=caller.session))


async def _revoked(request: Request, caller: Token, asked: Revoke) -> list[str]:
    return await link_of(request).call(Revoke(await _own(request, caller, asked.ids, Allowed)))


async def _of_caller(request: Request, caller: Token, asked: Pending | Allowed) -> list[dict[str, Any]]:
    """Return the pending requests of the sessions that a token permits."""
    try:
        found: Sequence[dict[str, Any]] = await link_of(request).call(replace(asked, session=caller.session or asked.session))
    except NotFoundError:
        if caller.session:
            return []
        raise
    return [one for one in found if asked.session in ("", one["session"], one["session_name"])]


async def _before(request: Request, caller: Token, asked: Precedents) -> list[dict[str, Any]]:
    """Return previously allowed calls of the sessions that a token permits."""
    if not await _own(request, caller, (asked.approval,), Pending):
        return []
    return list(await link_of(request).call(replace(asked, session=caller.session or asked.session)))


async def _own(request: Request, caller: Token, ids: Sequence[str], kind: type[Pending] | type[Allowed]) -> tuple[str, ...]:
    """Return the ids that a token may use: all ids, unless it is for one session."""
    if not caller.session:
        return tuple(ids)
    own = {one["id"] for one in await _of_caller(request, caller, kind())}
    return tuple(number for number in ids if number in own)


add(router, Pending, _of_caller, any_session=True)
add(router, Precedents, _before, any_session=True)
add(router, Decide, _decided, any_session=True)
add(router, Allowed, _of_caller, any_session=True)
add(router, Revoke, _revoked, any_session=True)
