"""What waits for a decision, and deciding about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from cellblock.errors import NotFoundError
from cellblock.fronts.gateway.access import link_of, needs_of_any
from cellblock.fronts.gateway.answers import json_response
from cellblock.fronts.gateway.models import Strict
from cellblock.fronts.gateway.sessions import ReadAny
from cellblock.operations.approvals import Allowed, Decide, Pending, Revoke
from cellblock.service.store.tokens import Token

router = APIRouter(prefix="/approvals", tags=["Approvals"])

Approve = Annotated[Token, Depends(needs_of_any("approve"))]


class PendingModel(BaseModel):
    """A call that waits for a decision, or a question of an MCP server for an answer."""

    id: str
    session: str
    session_name: str
    execution: str
    kind: str
    server: str
    tool: str
    arguments: dict[str, Any]
    since: float
    text: str = Field(description="All of it in one line, in which nothing hides.")


class PendingListResponse(BaseModel):
    """What waits, oldest first."""

    pending: list[PendingModel]


class DecideRequest(Strict):
    """A decision about one call or several."""

    ids: list[str] = Field(min_length=1, max_length=1000)
    allow: bool
    always: Literal["", "tool", "call"] = Field("", description="Allow the same tool, or the same call, from now on.")
    answer: dict[str, Any] = Field(
        default_factory=dict, description="What is filled in, by field, if an MCP server asks (kind 'question')."
    )


class DecidedResponse(BaseModel):
    """What was decided about; what is unknown or was decided before is left out."""

    decided: list[str]


class PermissionModel(BaseModel):
    """What was allowed for the rest of a session."""

    id: str
    session: str
    session_name: str
    scope: Literal["tool", "call"] = Field(description="tool: whatever the arguments; call: with exactly these arguments.")
    kind: str
    server: str
    tool: str
    text: str
    by: str = Field(description="Who has allowed it.")
    since: float


class PermissionListResponse(BaseModel):
    """What was allowed, oldest first."""

    allowed: list[PermissionModel]


class RevokeRequest(Strict):
    """What is no longer to be allowed."""

    ids: list[str] = Field(min_length=1, max_length=1000)


class RevokedResponse(BaseModel):
    """What there was of it."""

    revoked: list[str]


@router.get("", response_model=PendingListResponse, summary="List what waits for a decision")
async def pending(request: Request, caller: ReadAny, session: Annotated[str, Query(max_length=200)] = "") -> Response:
    """List what waits in the sessions that the token is for, oldest first."""
    return json_response({"pending": await _of_caller(request, caller, session, Pending)})


@router.post("", response_model=DecidedResponse, summary="Decide about what waits")
async def decide(request: Request, wanted: DecideRequest, caller: Approve) -> Response:
    """Allow or deny one call or several."""
    ids = await _own(request, caller, wanted.ids, Pending)
    asked = Decide(ids, wanted.allow, wanted.always, caller.name, wanted.answer)
    return json_response({"decided": await link_of(request).call(asked)})


@router.get("/allowed", response_model=PermissionListResponse, summary="List what was allowed")
async def allowed(request: Request, caller: ReadAny, session: Annotated[str, Query(max_length=200)] = "") -> Response:
    """List what was allowed for the rest of the sessions that the token is for, oldest first."""
    return json_response({"allowed": await _of_caller(request, caller, session, Allowed)})


@router.post("/revoke", response_model=RevokedResponse, summary="Revoke what was allowed")
async def revoke(request: Request, wanted: RevokeRequest, caller: Approve) -> Response:
    """Ask again about what was allowed."""
    ids = await _own(request, caller, wanted.ids, Allowed)
    return json_response({"revoked": await link_of(request).call(Revoke(ids))})


async def _of_caller(
    request: Request, caller: Token, session: str, kind: type[Pending] | type[Allowed]
) -> list[dict[str, Any]]:
    """Return what there is in the sessions that a token is for."""
    try:
        found: Sequence[dict[str, Any]] = await link_of(request).call(kind(session=caller.session or session))
    except NotFoundError:
        if caller.session:
            return []
        raise
    return [one for one in found if session in ("", one["session"], one["session_name"])]


async def _own(request: Request, caller: Token, ids: Sequence[str], kind: type[Pending] | type[Allowed]) -> tuple[str, ...]:
    """Return those ids that a token may speak of: all of them, unless it is for one session."""
    if not caller.session:
        return tuple(ids)
    own = {one["id"] for one in await _of_caller(request, caller, "", kind)}
    return tuple(number for number in ids if number in own)
