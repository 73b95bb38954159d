"""Handlers of operations on approvals and permissions."""

from __future__ import annotations

import asyncio

from cellblock.common import config
from cellblock.errors import StateError
from cellblock.model.overview import DecisionRecord
from cellblock.model.sessions import PendingApproval, Permission
from cellblock.operations.approvals import Allowed, Decide, Pending, Precedents, Revoke
from cellblock.operations.data import Data, as_data
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers
from cellblock.service.daemon.overview_handlers import decision_record
from cellblock.tools.registry.approvals import MAX_PAYLOAD, Approvals


@answers(Pending)
async def pending(server: Server, request: Pending) -> list[Data[PendingApproval]]:
    waiting = server.sessions.approvals.waiting(_known(server, request.session), withdrawn=request.withdrawn)
    return [as_data(approval) for approval in waiting]


@answers(Precedents)
async def precedents(server: Server, request: Precedents) -> list[Data[DecisionRecord]]:
    asked = next((one for one in server.sessions.approvals.waiting() if one.id == request.approval), None)
    if asked is None or asked.kind == "question":
        return []
    session = _known(server, request.session)

    def found() -> list[DecisionRecord]:
        with Approvals(config.state_directory()) as trail:
            allowed = trail.allowed(asked.kind, asked.server, asked.tool, request.count, session=session)
        return [decision_record(one, most=MAX_PAYLOAD) for one in allowed]

    return [as_data(one) for one in await asyncio.to_thread(found)]


@answers(Decide)
async def decide(server: Server, request: Decide) -> list[str]:
    approvals = server.sessions.approvals
    decided = await approvals.decide(
        request.ids,
        allow=request.allow,
        always=request.always,
        by=request.by,
        answer=request.answer,
        reason=request.reason,
        session=request.session,
    )
    ended = [approvals.why_ended(number, request.session) for number in request.ids]
    # Cluster nodes also get ids that they do not know. They must not fail for a decision that another node made.
    if ended and not decided and all(ended):
        raise StateError(f"nothing was decided: {ended[0]}")
    return decided


@answers(Allowed)
async def allowed(server: Server, request: Allowed) -> list[Data[Permission]]:
    return [as_data(permission) for permission in server.sessions.approvals.allowed(_known(server, request.session))]


@answers(Revoke)
async def revoke(server: Server, request: Revoke) -> list[str]:
    return server.sessions.approvals.revoke(request.ids)


def _known(server: Server, session: str) -> str | None:
    """Return the id of a session; None for an empty name, which means all sessions."""
    return server.sessions.find(session).record.kernel_id if session else None
