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
    """List what waits in the sessions that the token is for, oldest first.

    Attributes:
        session: The session; empty for all.
        withdrawn: Whether to list what waited when the last daemon ended, too.
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
    """List the last calls that were allowed of the tool that waits for a decision, newest first, in any session.

    Attributes:
        approval: The id of the pending approval. If it is no longer pending, the list is empty.
        session: The session whose calls count; empty for all.
        count: How many at most.
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

    Answered by the ids to which the decision applies: the same decision once more changes nothing. If all of them have ended
    otherwise, that is an error, which says why.

    Attributes:
        ids: The ids of pending approvals. Those that are unknown, or have ended otherwise, are left out of the answer.
        allow: Whether it may be done.
        always: Allow the same tool, or the same call, from now on.
        by: Who decides, for the record.
        answer: The values of the form, by field, if an MCP server asks (kind 'question').
        reason: Why it is denied. The code that asked gets it in its error.
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
    """List what was allowed for the rest of the sessions that the token is for, oldest first."""

    session: _Session = ""


class Revoke(
    Request[list[str]],
    op="revoke",
    route=Route("POST", "/approvals/revoke", "Revoke permissions", scope="approve", within="revoked"),
    join=one_after_the_other,
):
    """Ask again about what was allowed.

    Answered by the ids that there were.
    """

    ids: _Ids
