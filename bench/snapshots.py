"""The files of checkpoints: a workspace of many small files, of which a cell changes a few."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.cases import Series, ms
from bench.systems import System

_SIZE = 2000
_IN_FOLDER = 100
_CHANGED = 3


async def undo(_: System, *, n: int, files: int) -> Series:
    """What undoing a cell takes: the files as they were before it, and a snapshot for the next undo.

    Beside it, in turns: a walk that only asks the system about each file.
    """
    from cellblock.host.snapshots import Snapshots, Store

    times: dict[str, list[float]] = {"first": [], "undo": [], "unchanged": [], "bare walk": []}
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory) / "workspace"
        paths = fill(workspace, files)
        with Store(Path(directory) / "store") as store:
            snapshots = Snapshots(workspace, store, Path(directory) / "journals")
            times["first"].append(_timed(snapshots.take))
            time.sleep(0.1)  # what was written in this moment is read again
            before = snapshots.take()
            for number in range(n):
                times["bare walk"].append(_timed(lambda: _walk(workspace)))
                times["unchanged"].append(_timed(lambda: snapshots.drop(snapshots.take())))
                for path in paths[number :: files // _CHANGED][:_CHANGED]:
                    path.write_bytes(os.urandom(_SIZE))
                began = time.perf_counter()
                changes = snapshots.restore(before)
                snapshots.drop(before)
                before = snapshots.take()
                times["undo"].append(ms(began))
                if len(changes.written) != _CHANGED:
                    raise ValueError(f"other files were restored: {changes}")
    return times


def fill(workspace: Path, files: int) -> list[Path]:
    """Write many small files, in folders; return their paths."""
    paths = [workspace / f"folder-{number // _IN_FOLDER}" / f"file-{number}" for number in range(files)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(_SIZE))
    return paths


def _walk(workspace: Path) -> None:
    for _, _, names, folder in os.fwalk(workspace):
        for name in names:
            os.lstat(name, dir_fd=folder)


def _timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return ms(began)
