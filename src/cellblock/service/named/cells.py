"""The cells of a named session: undone cells, and cells inherited by a branch, included."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.model.overview import CellRecord

if TYPE_CHECKING:
    from cellblock.service.named.session import NamedSession
    from cellblock.service.store.journal import Journal


def cells_of(named: NamedSession, journal: Journal, count: int) -> list[CellRecord]:
    own = journal.cells(named.record.kernel_id, count)
    entries = {entry.tag: entry for entry in (named.current.history(count) if named.current is not None else []) if entry.tag}
    before = []
    if len(own) < count:
        known = {cell.id for cell in own}
        tags = [tag for tag in entries if tag not in known]
        before = [cell for tag in tags[len(own) - count :] if (cell := journal.cell(tag)) is not None]
    found, last = [], ""
    for cell in sorted((*before, *own), key=lambda one: one.submitted):
        # An execution that is unfinished, or that an earlier kernel ran, is not part of the history. It follows the cells
        # that were not undone.
        entry = entries.get(cell.id)
        after, abandoned = (last, False) if entry is None else (entry.after, entry.abandoned)
        found.append(replace(cell, after=after, abandoned=abandoned))
        last = last if abandoned else cell.id
    return found
