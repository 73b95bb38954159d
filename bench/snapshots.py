"""The files of checkpoints: a workspace of many small files, of which a cell changes a few."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.cases import SETTLE, Series, ms
from bench.checkpoints import run
from bench.systems import System
from cellblock import CheckpointError, Host, Session
from cellblock.host.snapshots import Snapshots, Store

_SIZE = 2000
_IN_FOLDER = 100
_CHANGED = 3


async def undo(_: System, *, n: int, files: Sequence[int]) -> Series:
    """Undo and redo of a cell that has changed three files of many, each up to the result of the next cell.

    Beside them, in turns: a walk that only asks the system about each file.
    """
    series: Series = {}
    async with Host() as host:
        for count in files:
            undo, redo, walk = (series.setdefault(f"{kind}, {count} files", []) for kind in ("undo", "redo", "bare walk"))
            with tempfile.TemporaryDirectory() as directory:
                paths = fill(Path(directory), count)[:: count // _CHANGED][:_CHANGED]
                cell = f"import os\nfor path in {[*map(str, paths)]}: n = open(path, 'wb').write(os.urandom({_SIZE}))"
                async with host.session(working_dir=directory) as session:
                    await _read(session, cell)
                    for _number in range(n):
                        walk.append(_timed(lambda: _walk(Path(directory))))
                        for times, ways in ((undo, (session.undo,)), (redo, (session.undo, session.redo))):
                            await run(session, cell)
                            await asyncio.sleep(SETTLE)
                            for way in ways:
                                began = time.perf_counter()
                                await way()
                            await run(session, "1", "1")
                            times.append(ms(began))
    return series


async def _read(session: Session, cell: str) -> None:
    """Wait until all files are read, without which a cell cannot be undone."""
    deadline = time.monotonic() + 60
    while True:
        await run(session, cell)
        await asyncio.sleep(SETTLE)
        try:
            await session.undo()
        except CheckpointError:
            if time.monotonic() > deadline:
                raise
        else:
            return


async def first(_: System, *, n: int, files: int) -> Series:
    """Taking the first snapshot of a workspace, which reads all files."""
    times: list[float] = []
    for _number in range(n):
        with tempfile.TemporaryDirectory() as directory:
            workspace = Path(directory) / "workspace"
            fill(workspace, files)
            with Store(Path(directory) / "store") as store:
                times.append(_timed(Snapshots(workspace, store, Path(directory) / "journals").take))
    return {"ms": times}


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
