"""What is written down of a session's past and checkpoints is read as it was, from any point on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cellblock.host.kernels.pairs import Instant
from cellblock.host.kernels.past import Past, StateRecord
from cellblock.host.survival.recalled import Kept, LastCell, Recalled
from cellblock.model import HistoryEntry


def base(past: Past, states: list[Any] | None = None) -> tuple[Any, ...]:
    return "base", past.saved(past.pairs), states or [], 0, [], 0, ("", "", False), None, []


def shown(past: Past) -> tuple[Any, ...]:
    return past.saved(past.pairs), past.present, past.entries


class ListRecord(StateRecord):
    """Records events in a list."""

    def __init__(self, records: list[tuple[Any, ...]]) -> None:
        self._records = records

    def write(self, word: str, *rest: object) -> None:
        """See `StateRecord`."""
        self._records.append((word, *rest))


@pytest.mark.parametrize("seed", range(20))
def test_a_past_is_read_as_it_was_from_any_point_on(seed: int) -> None:
    """Also what a session does that goes back and forth."""
    chance = random.Random(seed)
    records: list[tuple[Any, ...]] = []
    past = Past()
    past.record = ListRecord(records)
    lines = [(past.line, past.state)]
    bases = [(0, base(past))]
    for number in range(60):
        match chance.randrange(8):
            case 0 if lines:
                past.go_to(*chance.choice(lines), Instant.before_changes())
                past.look(f"files {number}")
            case 1:
                past.begin_anew()
                lines.clear()
            case 2:
                past.begin()  # a silent cell
                past.rest(past.state)
            case 3:
                past.begin()
                past.add(HistoryEntry(f"died {number}", "died", None), died=True)
            case 4:
                past.begin()
                past.unbegin()
            case 5 if past.line:
                past.abandon([past.line[-1].number])
            case _:
                past.begin()
                past.add(HistoryEntry(f"cell {number}", "success", number))
                past.rest(past.state)
        lines.append((past.line, past.state))
        if chance.random() < 0.2:
            bases.append((len(records), base(past)))
    for start, written in bases:
        recalled = Recalled.read([written, *records[start:]])
        assert recalled is not None
        assert shown(recalled.past) == shown(past)
    now = Past()
    assert now.state > past.state


def test_a_log_without_a_base_is_not_read() -> None:
    assert Recalled.read([]) is None
    assert Recalled.read([("begin", 1, 2)]) is None


def kept(name: str, state: int) -> Kept:
    return Kept(name, "", automatic=True, execution_count=1, made="", at=0.0, family=1, copy=2, state=state)


def test_checkpoints_have_the_past_of_their_moment_and_those_that_were_dropped_are_gone() -> None:
    records: list[tuple[Any, ...]] = []
    past = Past()
    records.append(base(past))
    past.record = ListRecord(records)
    past.begin()
    past.add(HistoryEntry("one", "success", 1))
    records.append(("made", tuple(kept("a", past.state))))
    past.begin()
    past.add(HistoryEntry("two", "success", 2))
    records += [("made", tuple(kept("b", past.state))), ("made", tuple(kept("c", past.state)))]
    records += [
        ("gone", "c"),
        ("gone", "unknown"),
        ("files", "a", None, "too large"),
        ("files", "unknown", None, ""),
    ]
    recalled = Recalled.read(records)
    assert recalled is not None
    assert [*recalled.states] == ["a", "b"]
    assert [cell.entry.code for cell in recalled.states["a"].past] == ["one"]
    assert recalled.states["a"].without_files == "too large"
    assert recalled.states["b"].past == past.line


def test_the_last_cell_is_the_one_before_if_it_was_not_sent() -> None:
    events: list[tuple[Any, ...]] = [
        *(("cell", "1/0", ""), ("not undoable", "too large"), ("add", "entry", False), ("lost", 2)),
        *(("cell", "1/1", ""), ("unbegun",), ("cell", "1/1", "why")),
    ]
    last = LastCell()
    for word, *rest in events:
        last = last.after(word, *rest)
    first = LastCell("1/0", "too large", added=True, lost=2)
    assert last == LastCell("1/1", "why", earlier=first)
    assert last.after("unbegun") == first


def test_long_code_of_old_cells_is_cut_when_all_is_written_anew() -> None:
    past = Past()
    for number in range(60):
        past.begin()
        past.add(HistoryEntry("x" * 100_000, "success", number))
    other = Past()
    other.restore(past.saved(past.pairs))
    lengths = [len(entry.code) for entry in other.entries]
    assert lengths[-1] == 100_000
    assert lengths[0] == 1000
    assert sum(lengths) < 5_000_000
