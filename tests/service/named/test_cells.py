"""The cells of a session are in order, and each tells after which one it ran."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cellblock.model import HistoryEntry
from cellblock.model.overview import CellRecord
from cellblock.service.named.cells import cells_of


def cell(name: str, at: float, session: str = "own") -> CellRecord:
    """Make a cell as the journal has it."""
    return CellRecord(name, session, "done", at, at, at + 1, name, "success", 1)


def entry(name: str, after: str = "", *, abandoned: bool = False) -> HistoryEntry:
    """Make a cell as the kernel's history has it."""
    return HistoryEntry(name, "success", 1, abandoned, tag=name, after=after)


def listed(own: list[CellRecord], entries: list[HistoryEntry], others: list[CellRecord], count: int = 100) -> list[CellRecord]:
    """Return the cells of a session."""
    journal = SimpleNamespace(
        cells=lambda _session, most: own[-most:],
        cell=lambda name: next((one for one in others if one.id == name), None),
    )
    current = SimpleNamespace(history=lambda most: entries[-most:]) if entries else None
    named = SimpleNamespace(record=SimpleNamespace(kernel_id="own"), current=current)
    return cells_of(cast("Any", named), cast("Any", journal), count)


def told(cells: list[CellRecord]) -> list[tuple[str, str, bool]]:
    """Return the names of cells, after which they ran, and whether they were undone."""
    return [(one.id, one.after, one.abandoned) for one in cells]


def test_what_the_history_knows_is_told() -> None:
    own = [cell("a", 1), cell("b", 2), cell("c", 3)]
    entries = [entry("a"), entry("b", "a", abandoned=True), entry("c", "a")]
    assert told(listed(own, entries, [])) == [("a", "", False), ("b", "a", True), ("c", "a", False)]


def test_what_it_does_not_know_follows_what_was_not_undone() -> None:
    own = [cell("earlier", 1), cell("a", 2), cell("b", 3), cell("queued", 4), cell("too", 5)]
    entries = [entry("a"), entry("b", "a", abandoned=True)]
    assert told(listed(own, entries, [])) == [
        ("earlier", "", False), ("a", "", False), ("b", "a", True), ("queued", "a", False), ("too", "queued", False),
    ]  # fmt: skip
    assert told(listed(own[:2], [], [])) == [("earlier", "", False), ("a", "earlier", False)]


def test_cells_of_the_session_before_the_branch_and_of_one_that_was_adopted_are_where_they_ran() -> None:
    own, others = [cell("b", 2), cell("d", 4)], [cell("a", 1, "trunk"), cell("c", 3, "limb")]
    entries = [entry("a"), entry("b", "a", abandoned=True), entry("c", "a"), entry("d", "c")]
    assert [one.id for one in listed(own, entries, others)] == ["a", "b", "c", "d"]
    assert [one.id for one in listed(own, entries, others, count=2)] == ["b", "d"]
