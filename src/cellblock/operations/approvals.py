"""Approvals and permissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from cellblock.operations.base import Limits, Request, Route

if TYPE_CHECKING:
    from cellblock.model import sessions
    from cellblock.operations.data import Data

_Ids = Annotated[tuple[str, ...], Limits(min_length=1, max_length=1000)]
_Session = Annotated[str, Limits(max_length=200)]


class Pending(
    Request["list[Data[sessions.PendingApproval]]"],
    op="pending",
    repeatable=True,
    route=Route("GET", "/approvals", "List what waits for a decision", scope="read", within="pending", without=("withdrawn",)),
):
    """List what waits in the sessions that the token is for, oldest first.

    Attributes:
        session: The session; empty for all.
        withdrawn: Whether to list what waited when the last daemon ended, too.
    """

    session: _Session = ""
    withdrawn: bool = False


class Decide(
    Request[list[str]],
    op="decide",
    route=Route("POST", "/approvals", "Decide about what waits", scope="approve", within="decided", without=("by",)),
):
    """Allow or deny one call or several.

    Answered by the ids that it was decided about.

    Attributes:
        ids: What to decide about. Those that are unknown, or decided already, are left out of the answer.
        allow: Whether it may be done.
        always: Allow the same tool, or the same call, from now on.
        by: Who decides, for the record.
        answer: What is filled in, by field, if an MCP server asks (kind 'question').
    """

    ids: _Ids
    allow: bool
    always: Annotated[str, Limits("", "tool", "call")] = ""
    by: str = ""
    answer: Mapping[str, Any] = field(default_factory=dict)


class Allowed(
    Request["list[Data[sessions.Permission]]"],
    op="allowed",
    repeatable=True,
    route=Route("GET", "/approvals/allowed", "List what was allowed", scope="read", within="allowed"),
):
    """List what was allowed for the rest of the sessions that the token is for, oldest first."""

    session: _Session = ""


class Revoke(
    Request[list[str]],
    op="revoke",
    route=Route("POST", "/approvals/revoke", "Revoke what was allowed", scope="approve", within="revoked"),
):
    """Ask again about what was allowed.

    Answered by the ids that there were.
    """

    ids: _Ids
