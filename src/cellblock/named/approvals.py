"""What waits for a decision in named sessions, and who may be asked about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cellblock.approvals.request import Always, ApprovalRequest
from cellblock.errors import InvalidInputError
from cellblock.model.sessions import PendingApproval

if TYPE_CHECKING:
    from collections.abc import Callable


class PendingApprovals:
    """All requests that wait, by id."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[PendingApproval, ApprovalRequest]] = {}

    def add(self, pending: PendingApproval, request: ApprovalRequest, then: Callable[[str], object]) -> None:
        """Take a request, which is forgotten when it is decided or withdrawn.

        Args:
            pending: What is to be shown of it.
            request: The request.
            then: Called with its state when it no longer waits.
        """
        self._waiting[pending.id] = (pending, request)

        def done(request: ApprovalRequest) -> None:
            self._waiting.pop(pending.id, None)
            then(request.state)

        request.add_done_callback(done)

    def waiting(self, session: str | None = None) -> list[PendingApproval]:
        """Return what waits, oldest first; of the session with this id, or of all."""
        return [pending for pending, _ in self._waiting.values() if session is None or pending.session == session]

    async def decide(self, ids: tuple[str, ...], *, allow: bool, always: str = "") -> list[str]:
        """Decide about requests.

        Args:
            ids: Which.
            allow: Whether they may be done.
            always: ``tool`` or ``call``: the same from now on, too (`ApprovalRequest.accept`).

        Returns:
            Which of them still waited.

        Raises:
            InvalidInputError: `always` is something else, or goes with a denial.
        """
        if always not in ("", "tool", "call") or (always and not allow):
            raise InvalidInputError("always can be 'tool' or 'call', for what is allowed")
        decided = []
        for name in ids:
            _, request = self._waiting.get(name, (None, None))
            if request is None or request.state != "pending":
                continue
            if allow:
                await request.accept(cast("Always", always) if always else None)
            else:
                await request.reject()
            decided.append(name)
        return decided
