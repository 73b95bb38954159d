"""The cells of a named session, with those that were undone, and those that a branch has from the session it was made from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.model.overview import CellRecord

if TYPE_CHECKING:
    from cellblock.service.named.session import NamedSession
    from cellblock.service.store.journal import Journal


def cells_of(named: NamedSession, journal: Journal, count: int) -> list[CellRecord]:
    """Return the last cells of a session, oldest first.

    Args:
        named: The session.
        journal: Where its executions are.
        count: How many at most.
    """
    own = journal.cells(named.record.kernel_id, count)
    entries = {entry.tag: entry for entry in (named.current.history(count) if named.current is not None else []) if entry.tag}
    before = []
    if len(own) < count:
        known = {cell.id for cell in own}
        tags = [tag for tag in entries if tag not in known]
        before = [cell for tag in tags[len(own) - count :] if (cell := journal.cell(tag)) is not None]
    found, last = [], ""
    for cell in sorted((*before, *own), key=lambda one: one.submitted):
        # One that has not ended, or that an earlier kernel ran, is not part of the history: it follows what was not undone.
        entry = entries.get(cell.id)
        after, abandoned = (last, False) if entry is None else (entry.after, entry.abandoned)
        found.append(replace(cell, after=after, abandoned=abandoned))
        last = last if abandoned else cell.id
    return found
