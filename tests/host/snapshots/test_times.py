"""What was changed within some spans of time is brought back; what somebody else has changed stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cellblock.host.kernels.past import files_time
from cellblock.host.snapshots import Snapshots

from .conftest import look


def changed_by(change: Callable[[], object]) -> tuple[int, int]:
    """Return the span of time in which a change was made, and nothing else."""
    began = later(time.time_ns())
    change()
    ended = time.time_ns()
    later(ended)
    return began, ended


def later(than: int) -> int:
    """Return a time after another one, once the clock has come to it: it goes in steps of some milliseconds."""
    while (now := files_time()) <= than:
        pass
    return now


def test_what_somebody_else_has_changed_stays(snapshots: Snapshots, workspace: Path) -> None:
    for name in ("theirs", "ours", "both", "removed"):
        (workspace / name).write_text("1")
    snapshot = snapshots.take()

    def others(name: str) -> None:
        for path in (name, "theirs", f"{name}-folder/theirs", "made/theirs"):
            (workspace / path).parent.mkdir(exist_ok=True)
            (workspace / path).write_text(name)

    def cell() -> None:
        for path in ("ours", "both", "new", "made/new", "folder/inner/new", "before-folder/new"):
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_text("3")
        (workspace / "removed").unlink()

    others("before")
    span = changed_by(cell)
    others("after")
    (workspace / "both").write_text("4")
    changes = snapshots.restore(snapshot, within=[span])
    assert changes.written == ("ours", "removed")
    assert changes.removed == ("before-folder/new", "folder", "made/new", "new")
    found = look(workspace)
    assert [name for name in found if not name.startswith(("before", "after"))] == [
        "both",
        "made",
        "made/theirs",
        "ours",
        "removed",
        "theirs",
    ]
    assert {"before", "before-folder/theirs", "after", "after-folder/theirs"} <= found.keys()
    assert [(workspace / name).read_text() for name in ("theirs", "ours", "both", "removed")] == ["after", "1", "4", "1"]


def test_each_of_several_spans_counts(snapshots: Snapshots, workspace: Path) -> None:
    snapshot = snapshots.take()
    first = changed_by((workspace / "first").touch)
    (workspace / "between").touch()
    second = changed_by((workspace / "second").touch)
    (workspace / "after").touch()
    assert snapshots.restore(snapshot, within=[first, second]).removed == ("first", "second")
    assert [*look(workspace)] == ["after", "between"]
