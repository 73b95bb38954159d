"""The history of a session that goes back and forth."""

from __future__ import annotations

import sys
import time

import pytest

from cellblock.host.kernels.past import _KEPT, Instant, Past
from cellblock.model import HistoryEntry
from clocks import WallClock


def entry(code: str) -> HistoryEntry:
    return HistoryEntry(code, "success", 1)


def test_going_back_over_cells_that_were_forgotten_keeps_the_order() -> None:
    past = Past()
    for number in range(_KEPT):
        past.add(entry(str(number)))
    line = past.line
    for number in range(_KEPT, _KEPT + 5):
        past.add(entry(str(number)))
    left = past.go_to(line, past.state)
    assert [cell.code for cell in left] == [str(number) for number in range(_KEPT, _KEPT + 5)]
    assert [cell.code for cell in past.present] == [str(number) for number in range(5, _KEPT)]
    assert [cell.code for cell in past.entries] == [str(number) for number in range(5, _KEPT + 5)]
    assert [cell.abandoned for cell in past.entries] == [False] * (_KEPT - 5) + [True] * 5


def test_a_cell_that_the_kernel_died_with_has_made_no_state() -> None:
    past = Past()
    past.add(entry("x = 1"))
    past.begin_anew()
    past.add(entry("crash"), died=True)
    assert ([cell.code for cell in past.entries], past.present) == (["x = 1", "crash"], [])


def test_a_state_has_its_number_again_after_going_back() -> None:
    past = Past()
    past.begin()
    past.add(entry("x = 1"))
    line, state = past.line, past.state
    past.begin()
    assert past.state > state
    past.go_to(line, state)
    assert past.state == state
    past.begin_anew()
    assert past.state > state


def test_going_back_past_a_reset_leaves_the_cells_between() -> None:
    past = Past()
    past.add(entry("x = 1"))
    line, state = past.line, past.state
    past.begin()
    past.add(entry("x = 2"))
    past.begin_anew()
    past.begin()
    past.add(entry("y = 1"))
    assert [cell.abandoned for cell in past.entries] == [False, False, False]
    later, after = past.line, past.state
    past.go_to(line, state)
    assert [cell.abandoned for cell in past.entries] == [False, True, True]
    past.go_to(later, after)
    assert [cell.abandoned for cell in past.entries] == [True, True, False]


@pytest.mark.parametrize("hours", [-3, 3])
def test_what_a_cell_changed_is_known_although_the_clock_was_set_while_it_ran(hours: int) -> None:
    """What it changed before has times of the old clock. Changes of others in the hours between are not its work."""
    past = Past()
    state, hour = past.state, 3600 * 10**9
    with WallClock() as clock:
        past.begin()
        before = time.time_ns()
        clock.ahead = 3600.0 * hours
        after = time.time_ns()
        running = past.spans_after(state)
        past.rest(past.state)
        spans = past.spans_after(state)

    def within(moment: int, spans: list[tuple[int, int]]) -> bool:
        return any(began <= moment <= ended for began, ended in spans)

    assert within(before, spans)
    assert within(after, spans)
    assert not within(after + hour, spans)
    assert within(after + hour, running)
    assert not within(min(before, after) - hour, spans)
    assert not within((before + after) // 2, spans)
    assert (len(spans), len(running)) == (2, 2)


def test_each_cell_has_one_span_while_nobody_sets_the_clock() -> None:
    past = Past()
    state = past.state
    for _ in range(3):
        past.begin()
        past.rest(past.state)
    past.begin()
    assert len(past.spans_after(state)) == 4


def test_a_cell_tells_after_which_one_it_began() -> None:
    past = Past()

    def run(name: str) -> str:
        past.begin()
        past.add(HistoryEntry(name, "success", 1, tag=name, after=past.after))
        return past.after

    assert [run("a"), run("b")] == ["", "a"]
    line, state = past.line, past.state
    assert run("c") == "b"
    past.go_to(line, state)
    later = Past()
    later.restore(past.saved())
    assert (later.after, [one.after for one in later.entries]) == ("b", ["", "a", "b"])
    assert run("d") == "b"
    past.begin_anew()
    assert run("e") == ""


def test_files_that_had_the_content_of_an_older_state_belong_to_it_too() -> None:
    """Going back twice, in steps, is going back once: what the first step wrote belongs to the second, too."""
    past = Past()
    lines = []
    for code in ("write", "other"):
        lines.append((past.line, past.state))
        past.begin()
        past.rest(past.state)
        past.add(entry(code))
    began = Instant.before_changes()
    written = began.files + 1
    past.brought_back(began)
    for line, state in reversed(lines):
        assert any(first <= written <= last for first, last in past.spans_after(state))
        past.go_to(line, state, with_files=True)
    assert past.spans_after(lines[0][1]) == []


def test_files_that_a_left_cell_has_changed_and_that_stay_are_nobodys() -> None:
    past = Past()
    line, state = past.line, past.state
    past.begin()
    past.rest(past.state)
    past.go_to(line, state)
    assert past._spans == []


def test_going_back_to_a_state_again_and_again_forgets_no_change() -> None:
    past = Past()
    first = past.state
    past.begin()
    past.rest(past.state)
    past.add(entry("write"))
    written, line, state = past.spans_after(first)[0], past.line, past.state
    for _ in range(3 * _KEPT):
        past.begin()
        past.rest(past.state)
        began = Instant.before_changes()
        past.go_to(line, state, with_files=True)
        past.brought_back(began)
    spans = past.spans_after(first)
    assert len(spans) < 10  # they follow each other at once, and so became one
    assert spans[0][0] == written[0]
    assert past.spans_after(state) == []


def test_files_that_tasks_change_belong_to_the_state_that_they_change() -> None:
    """Up to the beginning of the next state; also if that turns out not to have begun, and for a later host."""

    def changing(one: Past) -> bool:
        return one.changing

    past = Past()
    before = past.state
    past.begin()
    state = past.state
    past.rest(state)
    past.goes_on_changing()
    past.rest(state)  # has no effect: it goes on
    later = Past()
    later.restore(past.saved())
    for one in (past, later):
        assert changing(one)
        assert [end for _, end in one.spans_after(before)] == [sys.maxsize]
        one.begin()
        assert not changing(one)
        one.rest(one.state)
        one.unbegin()
        assert changing(one)
        assert [end for _, end in one.spans_after(before)] == [sys.maxsize]
        one.begin()
        ends = [end for _, end in one.spans_after(before)]
        assert ends[0] < sys.maxsize
        one.go_to((), state)
        assert changing(one)
        one.goes_on_changing(Instant.now())
        assert [end == sys.maxsize for _, end in one.spans_after(before)] == [False, True]
