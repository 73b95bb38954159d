"""The history of a session that goes back and forth."""

from __future__ import annotations

from cellblock.host.kernels.pairs import Instant
from cellblock.host.kernels.past import _KEPT, KeptResults, Past
from cellblock.model import CodeExecutionResult, HistoryEntry, OutputItem


def entry(code: str) -> HistoryEntry:
    return HistoryEntry(code, "success", 1)


def test_going_back_over_cells_that_were_forgotten_keeps_the_order() -> None:
    past = Past()
    for number in range(_KEPT):
        past.add(entry(str(number)))
    line = past.line
    for number in range(_KEPT, _KEPT + 5):
        past.add(entry(str(number)))
    past.go_to(line, past.state, Instant.before_changes())
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
    past.go_to(line, state, Instant.before_changes())
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
    past.go_to(line, state, Instant.before_changes())
    assert [cell.abandoned for cell in past.entries] == [False, True, True]
    past.go_to(later, after, Instant.before_changes())
    assert [cell.abandoned for cell in past.entries] == [True, True, False]


def test_a_cell_tells_after_which_one_it_began() -> None:
    past = Past()

    def run(name: str) -> str:
        past.begin()
        past.add(HistoryEntry(name, "success", 1, tag=name, after=past.after))
        return past.after

    assert [run("a"), run("b")] == ["", "a"]
    line, state = past.line, past.state
    assert run("c") == "b"
    past.go_to(line, state, Instant.before_changes())
    later = Past()
    later.restore(past.saved(past.pairs))
    assert (later.after, [one.after for one in later.entries]) == ("b", ["", "a", "b"])
    assert run("d") == "b"
    past.begin_anew()
    assert run("e") == ""


def test_old_results_make_room_for_new_ones() -> None:
    kept = KeptResults(10_000)
    first = kept.keep(CodeExecutionResult(text="x" * 4000))
    second = kept.keep(CodeExecutionResult(outputs=[OutputItem("display_data", data={"a": b"x" * 2000})]))
    assert (first.result is None, second.result is None) == (False, False)
    third = kept.keep(CodeExecutionResult(text="x" * 1000))
    assert (first.result is None, second.result is None, third.result is None) == (True, False, False)
    assert kept.keep(CodeExecutionResult(text="x" * 20_000)).result is None
    assert third.result is None
    assert kept.keep(CodeExecutionResult()).result is not None


def test_nothing_is_kept_without_room() -> None:
    assert KeptResults(0).keep(CodeExecutionResult()).result is None
