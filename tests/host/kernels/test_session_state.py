"""The history of a session that goes back and forth."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable

import pytest

from cellblock.host.kernels.pairs import Instant
from cellblock.host.kernels.session_state import _KEPT, LastCell, SessionState, StateWriter
from cellblock.host.kernels.state_events import (
    Abandoned,
    Called,
    Copied,
    Dropped,
    Event,
    Filed,
    Going,
    Numbered,
    Placed,
    RedosDropped,
    Saved,
    Undid,
    Unsent,
)
from cellblock.model import CodeExecutionResult, HistoryEntry, KeptResult


class Events(StateWriter):
    """The events of a session, as the next host reads them after each."""

    def __init__(self, state: SessionState) -> None:
        self.written: list[bytes] = [pickle.dumps(state, 5)]
        state.log = self

    def write(self, event: Event) -> None:
        """See `StateWriter`."""
        self.written.append(pickle.dumps(event, 5))


def read(records: Iterable[object]) -> SessionState:
    """Return the state that the next host reads."""
    found = SessionState.read([pickle.loads(one) for one in map(pickle.dumps, records)])
    assert found is not None
    return found


def numbers(saved: Saved) -> tuple[object, ...]:
    """Return a checkpoint with the numbers of its cells."""
    return saved._replace(line=()), *(cell.number for cell in saved.line)


def shown(state: SessionState) -> tuple[object, ...]:
    """Return everything in a state for a later host."""
    values = {name: value for name, value in vars(state).items() if name not in ("log", "recalled")}
    values["pairs"] = state.pairs.origin, state.pairs.pairs, state.pairs.latest
    # Their cells may have been abandoned since, which the history says.
    values["checkpoints"] = [*map(numbers, state.checkpoints.values())]
    values["redos"] = [(one._replace(saved=()), [*map(numbers, one.saved)]) for one in state.redos]
    return tuple(sorted(values.items()))


def entry(code: str) -> HistoryEntry:
    return HistoryEntry(code, "success", 1)


def test_going_back_over_cells_that_were_forgotten_keeps_the_order() -> None:
    past = SessionState()
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
    past = SessionState()
    past.add(entry("x = 1"))
    past.begin_anew()
    past.add(entry("crash"), died=True)
    assert ([cell.code for cell in past.entries], past.present) == (["x = 1", "crash"], [])


def test_a_state_has_its_number_again_after_going_back() -> None:
    past = SessionState()
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
    past = SessionState()
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
    past = SessionState()

    def run(name: str) -> str:
        past.begin()
        past.add(HistoryEntry(name, "success", 1, tag=name, after=past.after))
        return past.after

    assert [run("a"), run("b")] == ["", "a"]
    line, state = past.line, past.state
    assert run("c") == "b"
    past.go_to(line, state, Instant.before_changes())
    later = read([past])
    assert (later.after, [one.after for one in later.entries]) == ("b", ["", "a", "b"])
    assert run("d") == "b"
    past.begin_anew()
    assert run("e") == ""


def saved(name: str, *, pending: bool = False) -> Saved:
    return Saved.new("", True, 1, 1, 2, False, pending)._replace(id=name)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 20))])
def test_a_state_is_read_as_it_was_from_any_point_on(seed: int) -> None:
    """Also what a session does that goes back and forth."""
    chance = random.Random(seed)
    state = SessionState()
    writers = [Events(state)]
    for number in range(80):
        lines = [(one.line, one.state) for one in state.checkpoints.values()]
        match chance.randrange(14):
            case 0 | 1 if lines:
                pairs = pickle.loads(pickle.dumps(state.pairs))
                state.commit(Going(chance.choice([*state.checkpoints]), "undo", Instant(0, 0)))
                state.go_to(*chance.choice(lines), Instant.before_changes(), tasks=chance.random() < 0.3)
                if chance.random() < 0.7:
                    trash = ("directory", "id", {"cell": number})
                    undone = tuple(chance.sample([*state.checkpoints], chance.randint(1, min(2, len(lines)))))
                    state.commit(Undid(undone, pairs, state.state, state.fresh, f"before {number}", "after", trash))
                state.look(f"files {number}")
            case 2:
                state.begin_anew()
                state.commit(Placed(number))
            case 3:
                state.begin()  # of tasks
                state.goes_on_changing()
            case 4:
                state.begin(f"1/{number}")
                state.add(HistoryEntry(f"died {number}", "died", None), died=True)
            case 5:
                state.begin(f"1/{number}")
                state.commit(Unsent())
            case 6 if state.line:
                state.commit(Abandoned([state.line[-1].number]))
            case 7 | 8:
                state.commit(Copied(saved(f"cp-{number}")))
                state.commit(Filed(f"cp-{number}", f"files {number}", ""))
                state.merge()
            case 9 if state.checkpoints:
                state.commit(Dropped(chance.choice([*state.checkpoints])))
            case 10:
                state.commit(Called(number, "call"))
            case 11 if state.redos:
                state.commit(RedosDropped(chance.randint(0, 2)))
            case 12:
                state.begin(f"1/{number}", looks=True)
            case _:
                state.begin(f"1/{number}")
                state.add(HistoryEntry(f"cell {number}", "success", number))
                state.rest(state.state)
                if chance.random() < 0.3:
                    state.rest_later()
                state.look(f"files {number}")
        if chance.random() < 0.2:
            writers.append(Events(state))
    for start in range(len(writers)):
        events = [one for writer in writers[start:] for one in writer.written[1:]]
        records = [pickle.loads(one) for one in (writers[start].written[0], *events)]
        found = SessionState.read(records)
        assert found is not None
        assert shown(found) == shown(state)
    assert SessionState().state > state.state


def test_a_log_without_a_state_is_not_read() -> None:
    assert SessionState.read([]) is None
    assert SessionState.read([Dropped("a")]) is None


def test_a_log_is_read_from_its_last_state() -> None:
    """That is not the first one, if a host was killed while it rewrote the log."""
    state = SessionState()
    records: list[object] = [pickle.loads(pickle.dumps(state)), Copied(saved("a"))]
    state.commit(Copied(saved("b")))
    found = SessionState.read([*records, state, Copied(saved("c"))])
    assert found is not None
    assert [*found.checkpoints] == ["b", "c"]


def test_checkpoints_have_the_line_of_their_state_and_those_that_were_dropped_are_gone() -> None:
    state = SessionState()
    state.begin()
    state.add(entry("one"))
    state.commit(Copied(saved("a")))
    state.begin()
    state.add(entry("two"))
    for event in (Copied(saved("b")), Copied(saved("c")), Dropped("c"), Filed("a", None, "too large")):
        state.commit(event)
    found = read([state])
    assert [*found.checkpoints] == ["a", "b"]
    assert [cell.entry.code for cell in found.checkpoints["a"].line] == ["one"]
    assert found.checkpoints["a"].without_files == "too large"
    assert found.checkpoints["b"].line == found.line


def test_the_last_cell_is_the_one_before_if_it_was_not_sent() -> None:
    state = SessionState()
    state.begin("1/0")
    state.commit(Going("a", "crash", Instant(0, 0), 2))
    state.add(entry("one"), not_undoable="too large")
    state.begin("1/1")
    state.commit(Unsent())
    first = LastCell("1/0", "too large", added=True, lost=2)
    assert state.cell == first
    state.begin("1/1", "why")
    assert state.cell == LastCell("1/1", "why", earlier=first)


def test_long_code_of_old_cells_is_cut_when_the_state_is_written() -> None:
    state = SessionState()
    for number in range(60):
        state.begin()
        state.add(HistoryEntry("x" * 100_000, "success", number))
    lengths = [len(entry.code) for entry in read([state]).entries]
    assert lengths[-1] == 100_000
    assert lengths[0] == 1000
    assert sum(lengths) < 5_000_000


def test_results_are_not_written() -> None:
    kept = KeptResult(CodeExecutionResult(text="x" * 100_000))
    cell = Numbered(1, HistoryEntry("code", "success", 1, kept=kept, tag="tag", after="after"), 2)
    written = pickle.dumps(cell)
    assert len(written) < 500
    found = pickle.loads(written)
    assert found == cell
    assert (found.entry.tag, found.entry.after, found.entry.result) == ("tag", "after", None)
