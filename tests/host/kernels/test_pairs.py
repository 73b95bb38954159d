"""The pairs of snapshots that lead to the present state of a session."""

from __future__ import annotations

from pathlib import Path

from cellblock.host.kernels.pairs import Instant, Pair, Pairs, Span

_AT = Instant(0, 0)


def _ran(pairs: Pairs, state: int, after: object, later: object = None) -> None:
    """Run a cell, and look at the files after it, and again before the next one."""
    pairs.begin(state, _AT)
    pairs.look(after)
    pairs.look(later or after)


def _contents(pairs: Pairs) -> list[tuple[int, object, object]]:
    return [(pair.state, pair.before, pair.after) for pair in pairs.pairs]


def test_what_others_save_between_two_cells_belongs_to_neither() -> None:
    pairs = Pairs(1)
    pairs.look("a")
    _ran(pairs, 2, "b", "b, and others")
    _ran(pairs, 3, "c")
    assert _contents(pairs) == [(2, "a", "b"), (3, "b, and others", "c")]
    assert [pair.state for pair in pairs.after(2) or ()] == [3]
    assert pairs.after(0) is None


def test_neighbours_are_joined_where_nobody_has_saved_anything() -> None:
    pairs = Pairs(1)
    pairs.look("a")
    _ran(pairs, 2, "b")
    _ran(pairs, 3, "c", "c, and others")
    _ran(pairs, 4, "d")
    assert pairs.idle({4}) == [2]
    pairs.merge([2])
    assert _contents(pairs) == [(3, "a", "c"), (4, "c, and others", "d")]


def test_snapshots_are_released_when_nothing_needs_them() -> None:
    released: list[object] = []
    pairs = Pairs(1, release=released.append)
    pairs.look("a")
    _ran(pairs, 2, "b")
    _ran(pairs, 3, "c")
    pairs.go_to(2, 2, _AT)
    assert released == ["c"]
    pairs.look("d")
    pairs.clear(9)
    assert sorted(map(str, released)) == ["a", "b", "c", "d"]


def test_going_to_a_state_that_was_left_is_a_change_of_its_own() -> None:
    pairs = Pairs(1)
    pairs.look("a")
    _ran(pairs, 2, "b")
    pairs.go_to(1, 1, _AT)
    pairs.look("a")
    pairs.go_to(2, 1, _AT)
    pairs.look("b")
    assert _contents(pairs) == [(2, "a", "b")]


def test_a_clock_that_is_set_makes_two_spans() -> None:
    hour, second = 3_600_000_000_000, 1_000_000_000
    assert Span(Instant(0, 0), Instant(second, second)).times() == [(0, second)]
    before, after = Span(Instant(0, 0), Instant(hour, second)).times()
    assert before[0] == 0
    assert before[1] < hour / 2 < after[0] < after[1] == hour


def test_what_tasks_change_just_before_a_cell_is_their_own(tmp_path: Path) -> None:
    """The coarse clock, by which a cell begins, is behind the times that Linux gives files since 6.13."""
    file = tmp_path / "f"
    for _ in range(200):
        file.write_bytes(b"")
        file.stat()  # the next change gets a fine time
        file.write_bytes(b"x")
        assert file.stat().st_ctime_ns <= Instant.before_changes().after_changes().files


def test_an_undone_pair_can_come_back() -> None:
    pairs = Pairs(1)
    pairs.look("a")
    _ran(pairs, 2, "b")
    kept = pairs.copied(lambda one: f"{one} again")
    pairs.go_to(1, 1, _AT)
    pairs.become(kept)
    assert pairs.pairs == [Pair(2, "a again", "b again", (Span(_AT),))]
