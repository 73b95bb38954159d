"""The code in the session works against the host: at every system call, something in the workspace is swapped for a link."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.errors import SnapshotError
from cellblock.snapshots import Snapshot, Snapshots, Store

from .conftest import SECRET, Make, before_call, look

MOST_CALLS = 400

Swap = Callable[[Path, Path], None]


def fill(workspace: Path) -> None:
    shutil.rmtree(workspace / "folder", ignore_errors=True)
    (workspace / "folder" / "folder").mkdir(parents=True)
    for name in ("data", "folder/data"):
        (workspace / "folder" / name).write_bytes(b"its own")


def spoil(workspace: Path) -> None:
    """Change what `fill` has made, so that restoring writes, removes and makes."""
    for name in ("data", "folder/data"):
        (workspace / "folder" / name).write_bytes(b"something else")
    (workspace / "folder" / "new").mkdir()
    (workspace / "folder" / "new" / "data").write_bytes(b"new")


def swap_folder(workspace: Path, outside: Path) -> None:
    os.rename(workspace / "folder", workspace / "moved")
    os.symlink(outside, workspace / "folder")


def swap_inner_folder(workspace: Path, outside: Path) -> None:
    os.rename(workspace / "folder" / "folder", workspace / "folder" / "moved")
    os.symlink(outside / "folder", workspace / "folder" / "folder")


def swap_file(workspace: Path, outside: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(workspace / "folder" / "data")
    os.symlink(outside / "data", workspace / "folder" / "data")


def swap_staging(workspace: Path, outside: Path) -> None:
    for name in os.listdir(workspace):
        if name.startswith(".cellblock"):
            os.rename(workspace / name, workspace / "staged")
            os.symlink(outside, workspace / name)


def swap_staged(workspace: Path, outside: Path) -> None:
    for name in os.listdir(workspace):
        if name.startswith(".cellblock"):
            for staged in os.listdir(workspace / name):
                os.rename(workspace / name / staged, workspace / name / f"moved-{staged}")
                os.symlink(outside / "data", workspace / name / staged)


SWAPS = (swap_folder, swap_inner_folder, swap_file, swap_staging, swap_staged)


def check_nothing_was_read(store: Store) -> None:
    for name in os.listdir(store.directory):
        assert (store.directory / name).read_bytes() != SECRET


@pytest.mark.parametrize("swap", SWAPS[:3])
def test_nothing_outside_is_kept(workspace: Path, outside: Path, make: Make, store: Store, swap: Swap) -> None:
    for number in range(1, MOST_CALLS):
        shutil.rmtree(workspace)
        workspace.mkdir()
        fill(workspace)
        snapshots = make()
        with before_call(number, lambda: swap(workspace, outside)) as happened:
            snapshots.take()
            if not happened():
                break
        check_nothing_was_read(store)
    assert 5 < number < MOST_CALLS - 1


@pytest.mark.parametrize("swap", SWAPS)
def test_nothing_outside_is_written(workspace: Path, outside: Path, make: Make, store: Store, swap: Swap) -> None:
    before = look(outside)
    for number in range(1, MOST_CALLS):
        shutil.rmtree(workspace)
        workspace.mkdir()
        fill(workspace)
        snapshots = make()
        snapshot = snapshots.take()
        spoil(workspace)
        with before_call(number, lambda: swap(workspace, outside)) as happened:
            with contextlib.suppress(SnapshotError):
                snapshots.restore(snapshot)
            if not happened():
                break
        assert look(outside) == before
        check_nothing_was_read(store)
        finish(snapshots, snapshot)
        assert (workspace / "folder" / "folder" / "data").read_bytes() == b"its own"
        assert (workspace / "folder" / "data").read_bytes() == b"its own"
    assert 20 < number < MOST_CALLS - 1


def finish(snapshots: Snapshots, snapshot: Snapshot) -> None:
    """Restore in peace: whatever was swapped for a link is put in its place again."""
    snapshots.restore(snapshot)
    assert snapshots.diff(snapshot).changed == ()


def test_links_and_devices_lead_nowhere(snapshots: Snapshots, workspace: Path, outside: Path, store: Store) -> None:
    (workspace / "file").symlink_to(outside / "data")
    (workspace / "folder").symlink_to(outside)
    (workspace / "root").symlink_to("/")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(workspace / "socket"))
        snapshot = snapshots.take()
        check_nothing_was_read(store)
        assert (snapshot.files, [*dict(snapshot.left_out)]) == (0, ["socket"])
    before = look(workspace)
    for path in workspace.iterdir():
        path.unlink()
    snapshots.restore(snapshot)
    del before["socket"]
    assert look(workspace) == before


def test_a_huge_sparse_file_is_left_out_and_a_smaller_one_stays_sparse(make: Make, workspace: Path, store: Store) -> None:
    for name, size in (("huge", 2**40), ("sparse", 64 * 2**20)):
        with (workspace / name).open("wb") as file:
            file.truncate(size)
    snapshots = make()
    snapshot = snapshots.take()
    assert dict(snapshot.left_out) == {"huge": "it is too large"}
    (workspace / "sparse").write_bytes(b"")
    snapshots.restore(snapshot)
    sizes = [path.stat() for path in (workspace / "sparse", *store.directory.iterdir())]
    assert {info.st_size for info in sizes} == {64 * 2**20}
    assert all(info.st_blocks * 512 < 2**20 for info in sizes)


def test_a_deep_tree_ends_the_walk_and_not_the_host(snapshots: Snapshots, workspace: Path) -> None:
    top = os.open(workspace, os.O_RDONLY)
    here = top
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    snapshot = snapshots.take()
    assert snapshot.left_out == (("/".join("d" * 101), "it is nested too deep"),)
    assert snapshots.restore(snapshot).written == ()


def test_a_file_that_is_hard_linked_elsewhere_is_replaced_and_not_written_to(
    snapshots: Snapshots, workspace: Path, place: Path
) -> None:
    (workspace / "file").write_text("1")
    snapshot = snapshots.take()
    (place / "elsewhere").write_text("2")
    (workspace / "file").unlink()
    os.link(place / "elsewhere", workspace / "file")
    snapshots.restore(snapshot)
    assert (workspace / "file").read_text() == "1"
    assert (place / "elsewhere").read_text() == "2"


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(make: Make, workspace: Path, store: Store) -> None:
    (workspace / "file").write_bytes(b"1" * 10)
    snapshots = make(max_file_bytes=100)

    def grow() -> None:
        (workspace / "file").write_bytes(b"1" * 3_000_000)

    for number in range(1, 20):
        (workspace / "file").write_bytes(b"1" * 10)
        with before_call(number, grow):
            snapshot = snapshots.take()
        assert snapshot.bytes <= 100
        assert all(path.stat().st_size <= 100 for path in store.directory.iterdir())


def test_names_that_are_no_text_come_back(snapshots: Snapshots, workspace: Path) -> None:
    names = [b"\xff\xfe", b"new\nline", "\N{SNOWMAN}".encode(), b"a" * 255, b"-", b"$(x)"]
    for name in names:
        (workspace / os.fsdecode(name)).write_bytes(name)
    snapshot = snapshots.take()
    for name in names:
        (workspace / os.fsdecode(name)).unlink()
    assert len(snapshots.restore(snapshot).written) == len(names)
    assert sorted(os.listdir(os.fsencode(workspace))) == sorted(names)
