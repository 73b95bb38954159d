"""What clients ask about approvals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from cellblock.wire.record import record


@record
class Pending:
    """List what waits for a decision, oldest first; of one session, or of all. Answered by a list of `PendingApproval`.

    Attributes:
        session: The session; empty for all.
        withdrawn: Whether to list what waited when the last daemon ended, too.
    """

    op: ClassVar[str] = "pending"
    session: str = ""
    withdrawn: bool = False


@record
class Decide:
    """Decide about what waits. Answered by the list of ids that it was decided about.

    Attributes:
        ids: What to decide about. Those that are unknown, or decided already, are left out of the answer.
        allow: Whether it may be done.
        always: ``tool`` or ``call``: allow the same from now on, for the rest of the session (`ApprovalRequest.accept`).
        by: Who decides, for the record.
        answer: What is filled in, by field, if these are questions of MCP servers.
    """

    op: ClassVar[str] = "decide"
    ids: tuple[str, ...]
    allow: bool
    always: str = ""
    by: str = ""
    answer: Mapping[str, Any] = field(default_factory=dict)


@record
class Allowed:
    """List what was allowed for the rest of a session, oldest first; of one, or of all. Answered by a list of `Permission`."""

    op: ClassVar[str] = "allowed"
    session: str = ""


@record
class Revoke:
    """Revoke what was allowed for the rest of a session. Answered by the list of ids that there were."""

    op: ClassVar[str] = "revoke"
    ids: tuple[str, ...]
