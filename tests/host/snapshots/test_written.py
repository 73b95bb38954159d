"""A store outlives its process: the next one has its snapshots, whole or not at all, and nothing else is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshot, Snapshots, Store
from cellblock.host.snapshots import content as contents
from cellblock.host.snapshots.written import Description


class Place:
    """A workspace, and a store that processes take over from each other."""

    def __init__(self, directory: Path) -> None:
        self.journals = directory / "journals"
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        (directory / "stores").mkdir()
        self.store = Store(directory / "stores/one", lasting=True)
        self.snapshots = Snapshots(self.workspace, self.store, self.journals)

    def take(self) -> Snapshot:
        return self.snapshots.take()

    def described(self, *snapshots: Snapshot) -> list[Description]:
        found = [self.store.describe(one) for one in snapshots]
        return [one for one in found if one is not None]

    def next(self, *described: Description) -> list[Snapshot | None]:
        """Be the next process."""
        held = os.dup(self.store.held)
        self.snapshots.close()
        os.close(self.store.held)
        self.store, found = Store.take_over(self.store.directory, held, described)
        self.snapshots = Snapshots(self.workspace, self.store, self.journals)
        return found

    def tree(self) -> dict[str, str]:
        top = self.workspace
        return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.snapshots.close()
    made.store.close()


def fill(place: Place, mark: str) -> None:
    for name in ("a", "deep/er/b", "deep/c"):
        path = place.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{mark} {name}")
    (place.workspace / "empty").mkdir(exist_ok=True)


def test_the_next_process_restores_what_the_one_before_has_kept(place: Place) -> None:
    fill(place, "old")
    first, before = place.take(), place.tree()
    fill(place, "new")
    second, after = place.take(), place.tree()
    one, two = place.next(*place.described(first, second))
    assert one is not None
    assert two is not None
    assert (one.files, one.bytes) == (first.files, first.bytes)
    place.snapshots.restore(one)
    assert place.tree() == before
    (three,) = place.next(*place.described(two))
    assert three is not None
    place.snapshots.restore(three)
    assert place.tree() == after


def test_what_no_snapshot_needs_is_removed(place: Place) -> None:
    fill(place, "old")
    first = place.take()
    fill(place, "new")
    second = place.take()
    (place.store.directory / "new-7").write_text("half")
    (one,) = place.next(*place.described(first))
    assert one is not None
    names = {*os.listdir(place.store.directory)}
    assert len(names) == 3 + 4  # contents, and the parts of folders
    assert place.store.bytes == one.bytes
    place.store.drop(one)
    assert os.listdir(place.store.directory) == []
    with pytest.raises(SnapshotError):
        place.store.check(second)


def test_snapshots_of_the_same_files_are_dropped_apart(place: Place) -> None:
    fill(place, "x")
    found = place.next(*place.described(place.take(), place.take()))
    assert found[0] is not None
    assert found[1] is not None
    place.store.drop(found[0])
    place.snapshots.restore(found[1])


@pytest.mark.parametrize("what", ["part-*", "?" * 40])
def test_a_snapshot_of_which_something_is_missing_is_none(place: Place, what: str) -> None:
    fill(place, "x")
    first = place.take()
    (place.workspace / "a").unlink()
    (place.workspace / "deep/c").unlink()
    second = place.take()
    described = place.described(first, second)
    only = {digest for digest in os.listdir(place.store.directory) if len(digest) == 40}
    if what == "part-*":
        (place.store.directory / f"part-{described[0].parts[0]}").unlink()
    else:
        for name in only:
            if (place.store.directory / name).read_text() == "x a":
                (place.store.directory / name).unlink()
    one, two = place.next(*described)
    assert one is None
    assert two is not None
    (place.workspace / "deep/er/b").write_text("changed")
    place.snapshots.restore(two)
    assert place.tree() == {"deep/er/b": "x deep/er/b"}


def test_a_cut_off_part_is_not_read(place: Place) -> None:
    fill(place, "x")
    described = place.described(place.take())
    path = place.store.directory / f"part-{described[0].parts[0]}"
    path.write_bytes(path.read_bytes()[:-3])
    assert place.next(*described) == [None]
    assert os.listdir(place.store.directory) == []


def test_only_parts_that_have_changed_are_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(place, "x")
    place.take()
    for name in ("a", "deep/er/b", "deep/c"):
        os.utime(place.workspace / name, (1, 1))
    place.take()
    written: list[bytes] = []
    write = contents.write

    def count(target: int, data: bytes) -> None:
        written.append(data)
        write(target, data)

    monkeypatch.setattr(contents, "write", count)
    first = place.take()
    (place.workspace / "deep/new").mkdir()
    second = place.take()
    # If times are too new to be sure, files are read again, and are the same.
    assert len(written) <= 3
    assert None not in place.next(*place.described(first, second))


def test_what_cannot_be_written_is_not_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(place, "x")
    kept = place.take()
    before = sorted(os.listdir(place.store.directory))
    fill(place, "y")
    write, calls = contents.write, 0

    def full(target: int, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:  # after the contents, and one folder
            raise OSError(28, "No space left on device")
        write(target, data)

    with monkeypatch.context() as patch:
        patch.setattr(contents, "write", full)
        with pytest.raises(SnapshotError, match="no space left"):
            place.take()
    assert sorted(os.listdir(place.store.directory)) == before
    (again,) = place.next(*place.described(kept))
    assert again is not None


def test_a_store_that_ends_with_its_process_describes_nothing(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    with Store(tmp_path / "store") as store:
        assert store.describe(Snapshots(workspace, store, tmp_path).take()) is None
        assert os.listdir(store.directory) == []
