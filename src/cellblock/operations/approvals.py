"""Approvals and permissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from cellblock.operations.base import Limits, Request, Route, in_order_of, one_after_the_other

if TYPE_CHECKING:
    from cellblock.model import overview, sessions
    from cellblock.operations.data import Data

_Ids = Annotated[tuple[str, ...], Limits(min_length=1, max_length=1000)]
_Session = Annotated[str, Limits(max_length=200)]


class Pending(
    Request["list[Data[sessions.PendingApproval]]"],
    op="pending",
    repeatable=True,
    route=Route(
        "GET", "/approvals", "List pending requests for approval", scope="read", within="pending", without=("withdrawn",)
    ),
    join=in_order_of("since"),
):
    """List the pending requests of the token's sessions, oldest first.

    Attributes:
        session: The session; empty for all.
        withdrawn: Whether to include requests that were pending when the last daemon ended.
    """

    session: _Session = ""
    withdrawn: bool = False


class Precedents(
    Request["list[Data[overview.DecisionRecord]]"],
    op="precedents",
    repeatable=True,
    route=Route("GET", "/approvals/{approval}/precedents", "List recorded decisions", scope="read", within="decisions"),
    join=one_after_the_other,
):
    """List the last allowed calls of a pending request's tool, newest first, in any session.

    Attributes:
        approval: The id of the pending approval. If it is no longer pending, the list is empty.
        session: The session whose calls count; empty for all.
        count: Maximum number of calls.
    """

    approval: _Session
    session: _Session = ""
    count: Annotated[int, Limits(ge=1, le=20)] = 1


class Decide(
    Request[list[str]],
    op="decide",
    route=Route(
        "POST", "/approvals", "Decide about pending requests", scope="approve", within="decided", without=("by", "session")
    ),
    join=one_after_the_other,
):
    """Allow or deny one call or several.

    Answered by the ids to which the decision applies. The operation is idempotent. If all of them have ended otherwise, it
    fails with the reason.

    Attributes:
        ids: The ids of pending approvals. The answer leaves out unknown ids, and requests that have ended otherwise.
        allow: Whether to allow the calls.
        always: Also allow the same tool, or the same call, for the rest of the session.
        by: Who decides, for the record.
        answer: The values of the form, by field, if an MCP server asks (kind 'question').
        reason: Why the calls are denied. The code gets it in its error.
        session: Only requests of this session (name or id); empty for all.
    """

    ids: _Ids
    allow: bool
    always: Annotated[str, Limits("", "tool", "call")] = ""
    by: str = ""
    answer: Mapping[str, Any] = field(default_factory=dict)
    reason: Annotated[str, Limits(max_length=500)] = ""
    session: _Session = ""


class Allowed(
    Request["list[Data[sessions.Permission]]"],
    op="allowed",
    repeatable=True,
    route=Route("GET", "/approvals/allowed", "List permissions", scope="read", within="allowed"),
    join=in_order_of("since"),
):
    """List the permissions of the token's sessions, oldest first."""

    session: _Session = ""


class Revoke(
    Request[list[str]],
    op="revoke",
    route=Route("POST", "/approvals/revoke", "Revoke permissions", scope="approve", within="revoked"),
    join=one_after_the_other,
):
    """Revoke permissions.

    Answered by the ids that existed.
    """

    ids: _Ids
