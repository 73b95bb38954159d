"""What waits for a decision in named sessions, and what was allowed for good."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, cast

from cellblock.approvals.broker import Broker
from cellblock.approvals.request import Always, ApprovalRequest, visible
from cellblock.errors import InvalidInputError
from cellblock.model.sessions import PendingApproval, Permission, SessionRecord
from cellblock.store.sessions import SessionRegistry

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("cellblock.named")
_MAX_BY = 100


class PendingApprovals:
    """All requests that wait, by id, and the permissions of all sessions."""

    def __init__(self, registry: SessionRegistry) -> None:
        """Begin with nothing that waits.

        Args:
            registry: Where it is all kept.
        """
        self._registry = registry
        self._waiting: dict[str, tuple[PendingApproval, ApprovalRequest]] = {}
        self._brokers: dict[str, Broker] = {}

    def add(self, pending: PendingApproval, request: ApprovalRequest, then: Callable[[str], object]) -> None:
        """Take a request, which is forgotten when it is decided or withdrawn.

        Args:
            pending: What is to be shown of it.
            request: The request.
            then: Called with its state when it no longer waits.
        """
        if request.state != "pending":
            then(request.state)
            return
        self._waiting[pending.id] = (pending, request)
        self._registry.add_request(pending)

        def done(request: ApprovalRequest) -> None:
            self._waiting.pop(pending.id, None)
            self._registry.end_request(pending.id)
            then(request.state)

        request.add_done_callback(done)

    def waiting(self, session: str | None = None, *, withdrawn: bool = False) -> list[PendingApproval]:
        """Return what waits, oldest first.

        Args:
            session: The id of a session; None for all.
            withdrawn: Whether to return what waited when the last process ended, too.
        """
        before = self._registry.withdrawn_requests(session) if withdrawn else []
        now = [pending for pending, _ in self._waiting.values() if session in (None, pending.session)]
        return before + now

    async def decide(self, ids: tuple[str, ...], *, allow: bool, always: str = "", by: str = "") -> list[str]:
        """Decide about requests.

        Args:
            ids: Which.
            allow: Whether they may be done.
            always: ``tool`` or ``call``: the same from now on, too (`ApprovalRequest.accept`).
            by: Who decides, for the record.

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
            request.by = visible(by)[:_MAX_BY]
            if allow:
                await request.accept(cast("Always", always) if always else None)
            else:
                await request.reject()
            decided.append(name)
        return decided

    # -- permissions ---------------------------------------------------------------------------------------------------

    def join(self, record: SessionRecord, broker: Broker) -> None:
        """Have a session's broker know what was allowed for good, and keep what will be.

        Args:
            record: The session.
            broker: Decides for it.
        """
        if self._brokers.get(record.kernel_id) is broker:
            return
        self._brokers[record.kernel_id] = broker
        for _, key in self._registry.permissions(record.kernel_id):
            broker.remember(key)

        def keep(request: ApprovalRequest, key: tuple[str, ...]) -> None:
            self._registry.allow(
                Permission(
                    id=secrets.token_hex(8),
                    session=record.kernel_id,
                    session_name=record.name,
                    scope="tool" if request.always == "tool" else "call",
                    kind=request.kind,
                    server=request.server_name,
                    tool=request.tool_name,
                    text=str(request)[:1000],
                    by=request.by,
                ),
                key,
            )

        broker.on_always = keep

    def allowed(self, session: str | None = None) -> list[Permission]:
        """Return what was allowed for good, oldest first; in one session, or in all."""
        return [permission for permission, _ in self._registry.permissions(session)]

    def revoke(self, ids: tuple[str, ...]) -> list[str]:
        """Revoke permissions: the next such call is asked about again.

        Args:
            ids: Which.

        Returns:
            Which of them there were.
        """
        revoked = []
        for permission, key in self._registry.permissions():
            if permission.id in ids:
                self._registry.revoke(permission.id)
                if (broker := self._brokers.get(permission.session)) is not None:
                    broker.revoke(key)
                _log.info("revoked in session %s: %s %s", permission.session_name, permission.scope, permission.tool)
                revoked.append(permission.id)
        return revoked

    def forget(self, session: str) -> None:
        """Forget what was allowed in a session that gets a fresh kernel."""
        self._registry.forget_permissions(session)

    def leave(self, session: str) -> None:
        """Forget the broker of a session that has ended."""
        self._brokers.pop(session, None)
