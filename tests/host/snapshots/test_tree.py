"""What is kept of each thing in a tree, and how much of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cellblock.host.snapshots import Snapshots


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


def test_names_that_are_no_text_come_back(snapshots: Snapshots, workspace: Path) -> None:
    names = [b"\xff\xfe", b"new\nline", "\N{SNOWMAN}".encode(), b"a" * 255, b"-", b"$(x)"]
    for name in names:
        (workspace / os.fsdecode(name)).write_bytes(name)
    snapshot = snapshots.take()
    for name in names:
        (workspace / os.fsdecode(name)).unlink()
    assert len(snapshots.restore(snapshot).written) == len(names)
    assert sorted(os.listdir(os.fsencode(workspace))) == sorted(names)


def test_a_set_user_id_bit_does_not_come_back(snapshots: Snapshots, workspace: Path) -> None:
    (workspace / "file").write_text("1")
    (workspace / "file").chmod(0o6755)
    snapshot = snapshots.take()
    (workspace / "file").unlink()
    snapshots.restore(snapshot)
    assert stat.S_IMODE((workspace / "file").stat().st_mode) == 0o755
