"""Approvals and permissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from cellblock.operations.base import Request

if TYPE_CHECKING:
    from cellblock.model.sessions import PendingApproval, Permission
    from cellblock.operations.data import Data


class Pending(Request["list[Data[PendingApproval]]"], op="pending", repeatable=True):
    """List what waits for a decision, oldest first; of one session, or of all.

    Attributes:
        session: The session; empty for all.
        withdrawn: Whether to list what waited when the last daemon ended, too.
    """

    session: str = ""
    withdrawn: bool = False


class Decide(Request[list[str]], op="decide"):
    """Decide about what waits. Answered by the list of ids that it was decided about.

    Attributes:
        ids: What to decide about. Those that are unknown, or decided already, are left out of the answer.
        allow: Whether it may be done.
        always: ``tool`` or ``call``: allow the same from now on, for the rest of the session (`ApprovalRequest.accept`).
        by: Who decides, for the record.
        answer: What is filled in, by field, if these are questions of MCP servers.
    """

    ids: tuple[str, ...]
    allow: bool
    always: str = ""
    by: str = ""
    answer: Mapping[str, Any] = field(default_factory=dict)


class Allowed(Request["list[Data[Permission]]"], op="allowed", repeatable=True):
    """List what was allowed for the rest of a session, oldest first; of one, or of all."""

    session: str = ""


class Revoke(Request[list[str]], op="revoke"):
    """Revoke what was allowed for the rest of a session. Answered by the list of ids that there were."""

    ids: tuple[str, ...]
