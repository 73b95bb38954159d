"""Answers what clients ask about approvals and permissions."""

from __future__ import annotations

from cellblock.model.sessions import PendingApproval, Permission
from cellblock.operations.approvals import Allowed, Decide, Pending, Revoke
from cellblock.operations.data import Data, as_data
from cellblock.service.daemon.handlers import answers
from cellblock.service.daemon.server import Server


@answers(Pending)
async def pending(server: Server, request: Pending) -> list[Data[PendingApproval]]:
    """See `Pending`."""
    waiting = server.sessions.approvals.waiting(_known(server, request.session), withdrawn=request.withdrawn)
    return [as_data(approval) for approval in waiting]


@answers(Decide)
async def decide(server: Server, request: Decide) -> list[str]:
    """See `Decide`."""
    return await server.sessions.approvals.decide(
        request.ids, allow=request.allow, always=request.always, by=request.by, answer=request.answer
    )


@answers(Allowed)
async def allowed(server: Server, request: Allowed) -> list[Data[Permission]]:
    """See `Allowed`."""
    return [as_data(permission) for permission in server.sessions.approvals.allowed(_known(server, request.session))]


@answers(Revoke)
async def revoke(server: Server, request: Revoke) -> list[str]:
    """See `Revoke`."""
    return server.sessions.approvals.revoke(request.ids)


def _known(server: Server, session: str) -> str | None:
    """Return the id of a session; None if none is named, which means all."""
    return server.sessions.find(session).record.kernel_id if session else None
