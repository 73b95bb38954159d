"""A daemon for tests: of its own directory, and ended with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cellblock
from cellblock.fronts.functions.connection import local
from cellblock.service.daemon import control


@contextmanager
def asking(directory: Path) -> Iterator[Path]:
    """Have everything that asks for the daemon ask one of this directory. Its workspace becomes the current directory."""
    home, workspace, temporary = (directory / name for name in ("state", "workspace", "tmp"))
    for path in (home, workspace, temporary):
        path.mkdir(exist_ok=True)  # a test may have put state there
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLBLOCK_HOME", str(home))
        patch.setenv("TMPDIR", str(temporary))  # where it makes what the tests would call left behind
        patch.chdir(workspace)
        try:
            cellblock.list_kernels()  # starts it, and opens this thread's connection
            yield home
        finally:
            for each in local.__dict__.pop("connections", {}).values():
                each.close()


@contextmanager
def own_daemon(directory: Path) -> Iterator[Path]:
    """Run a daemon of this directory, which everything asks that asks for the daemon."""
    with asking(directory) as home:
        try:
            yield home
        finally:
            control.stop()  # also if a test has killed the daemon that this thread is connected to
