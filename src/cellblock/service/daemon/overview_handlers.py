"""Handlers of operations on all sessions together, and on the history of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import cast

from cellblock.common import config
from cellblock.model.decisions import Decision
from cellblock.model.overview import CellRecord, Change, DecisionRecord, FoundSession
from cellblock.operations.data import Data, as_data
from cellblock.operations.overview import Cells, Decisions, SearchSessions, Watch
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers
from cellblock.service.named.cells import cells_of
from cellblock.service.named.searching import search
from cellblock.tools.registry.approvals import Approvals

_MAX_ARGUMENTS = 10_000


@answers(Watch)
async def watch(server: Server, request: Watch) -> AsyncGenerator[Data[Change], None]:
    return cast("AsyncGenerator[Data[Change], None]", server.sessions.overview.follow(request.after))


@answers(Cells)
async def cells(server: Server, request: Cells) -> list[Data[CellRecord]]:
    await server.turns.give_way()
    journal = server.sessions.store.journal
    if _has_ended(server, request.session):
        return [as_data(cell) for cell in journal.cells(request.session, request.count)]
    return [as_data(cell) for cell in cells_of(server.sessions.find(request.session), journal, request.count)]


@answers(Decisions)
async def decisions(server: Server, request: Decisions) -> list[Data[DecisionRecord]]:
    session, results = request.session, dict[float, str]()
    if not _has_ended(server, session):
        named = server.sessions.find(session)
        session, results = named.record.kernel_id, dict(named.results)
    found = await asyncio.to_thread(_decisions, session, request.count, results)
    return [as_data(decision) for decision in found]


@answers(SearchSessions)
async def search_sessions(server: Server, request: SearchSessions) -> list[Data[FoundSession]]:
    return [as_data(one) for one in await search(server.sessions, request.words, request.count)]


def _has_ended(server: Server, session: str) -> bool:
    """Return whether this is the id of an ended session, whose cells can still be listed."""
    return server.sessions.known(session) is None and server.sessions.store.sessions.has_ended(session)


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
