"""Handlers of operations on all sessions together, and on the history of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import cast

from cellblock.common import config
from cellblock.model.decisions import Decision
from cellblock.model.overview import CellRecord, Change, DecisionRecord
from cellblock.operations.data import Data, as_data
from cellblock.operations.overview import Cells, Decisions, Watch
from cellblock.service.daemon.handlers import answers
from cellblock.service.daemon.server import Server
from cellblock.service.named.cells import cells_of
from cellblock.tools.registry.approvals import Approvals

_MAX_ARGUMENTS = 10_000


@answers(Watch)
async def watch(server: Server, request: Watch) -> AsyncGenerator[Data[Change], None]:
    return cast("AsyncGenerator[Data[Change], None]", server.sessions.overview.follow(request.after))


@answers(Cells)
async def cells(server: Server, request: Cells) -> list[Data[CellRecord]]:
    await server.turns.give_way()
    named = server.sessions.find(request.session)
    return [as_data(cell) for cell in cells_of(named, server.sessions.store.journal, request.count)]


@answers(Decisions)
async def decisions(server: Server, request: Decisions) -> list[Data[DecisionRecord]]:
    named = server.sessions.find(request.session)
    found = await asyncio.to_thread(_decisions, named.record.kernel_id, request.count, dict(named.results))
    return [as_data(decision) for decision in found]


def _decisions(session: str, count: int, results: Mapping[float, str]) -> list[DecisionRecord]:
    with Approvals(config.state_directory()) as trail:
        found = trail.last(count, session=session)
    return [decision_record(one, results.get(one.at, "")) for one in reversed(found)]


def decision_record(one: Decision, result: str = "", *, most: int = _MAX_ARGUMENTS) -> DecisionRecord:
    """Convert a decision for clients.

    Args:
        one: The decision.
        result: The start of the call's result.
        most: How many characters of the arguments to include.
    """
    arguments = one.payload[:most].decode("ascii", "replace")
    called = one.kind, one.server, one.tool
    return DecisionRecord(one.at, one.outcome, one.by, *called, arguments, one.reason, result, one.session)
