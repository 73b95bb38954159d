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
from cellblock.host.snapshots import Snapshot, Snapshots, Store

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


@pytest.mark.slow
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
