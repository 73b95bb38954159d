"""Searches sessions by name, labels, directory and code. Ended sessions are found as long as the journal has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from cellblock.common.turns import turns
from cellblock.errors import InvalidInputError
from cellblock.model.overview import CellRecord, FoundSession
from cellblock.model.sessions import SessionRecord

if TYPE_CHECKING:
    from cellblock.service.named.named_sessions import NamedSessions

MAX_WORDS = 8
_MAX_LINE = 300
_ENDED_AT_ONCE = 200
_CELLS_AT_ONCE = 50
"""Cells between two turns of the event loop. Matching the longest ones takes 20 ms."""


@dataclass(slots=True)
class _Candidate:
    """A session, and which words its name, labels or directory contain."""

    record: SessionRecord
    ended: float | None
    has: tuple[bool, ...]


async def search(sessions: NamedSessions, words: str, count: int) -> list[FoundSession]:
    """Return the sessions that contain all words, the last used first.

    A word can be in the name, the labels, the directory, or in one cell, which then contains all other words.

    Args:
        sessions: The sessions.
        words: Words, separated by spaces; none for all sessions.
        count: The maximum number of sessions to return.

    Raises:
        InvalidInputError: There are too many words.
    """
    wanted = words.casefold().split()
    if len(wanted) > MAX_WORDS:
        raise InvalidInputError(f"a search takes at most {MAX_WORDS} words, not {len(wanted)}")
    candidates = await _candidates(sessions, wanted)
    found: dict[str, FoundSession] = {}
    before = ""
    while len(found) < count:
        await turns().give_way()
        page = sessions.store.journal.matching(wanted, before, _CELLS_AT_ONCE)
        for number, session, submitted, has in page:
            one = candidates.get(session)
            if one is None or session in found or len(found) >= count:
                continue
            if all(in_code or in_header for in_code, in_header in zip(has, one.has, strict=True)):
                cell = sessions.store.journal.cell(number) if not wanted or any(has) else None
                found[session] = _found(one, submitted, cell, wanted)
        if len(page) < _CELLS_AT_ONCE:
            break
        before = page[-1][0]
    if len(found) == count:
        return [*found.values()]  # the others may have older cells
    unused = [one for one in candidates.values() if all(one.has) and one.record.kernel_id not in found]
    rest = [_found(one, one.ended or datetime.fromisoformat(one.record.created_at).timestamp(), None, ()) for one in unused]
    return sorted((*found.values(), *rest), key=lambda one: one.used, reverse=True)[:count]


async def _candidates(sessions: NamedSessions, words: Sequence[str]) -> dict[str, _Candidate]:
    """Return all sessions by id."""
    found = {one.record.kernel_id: _candidate(one.record, None, words) for one in sessions.all()}
    last = ""
    while page := sessions.store.sessions.ended(_ENDED_AT_ONCE, last):
        for at, record in page:
            found.setdefault(record.kernel_id, _candidate(record, at, words))
        last = page[-1][1].kernel_id
        await turns().give_way()
    return found


def _candidate(record: SessionRecord, ended: float | None, words: Sequence[str]) -> _Candidate:
    text = " ".join((record.name, record.workspace, *(part for tag in record.tags.items() for part in tag))).casefold()
    return _Candidate(record, ended, tuple(word in text for word in words))


def _found(one: _Candidate, used: float, cell: CellRecord | None, words: Sequence[str]) -> FoundSession:
    record = one.record
    names = record.kernel_id, record.name, record.created_at
    if cell is None:
        return FoundSession(*names, used, one.ended, record.tags, record.workspace)
    return FoundSession(*names, used, one.ended, record.tags, record.workspace, cell.id, _line(cell.code, words))


def _line(code: str, words: Sequence[str]) -> str:
    """Return the part of the first line that contains a word, or of the first line with text."""
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    for line in lines:
        places = [place for word in words if (place := line.casefold().find(word)) >= 0]
        if places:
            return line[max(min(places) - _MAX_LINE // 2, 0) :][:_MAX_LINE]
    return lines[0][:_MAX_LINE] if lines else ""
