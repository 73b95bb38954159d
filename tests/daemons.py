"""A daemon for tests: of its own directory, and ended with them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.fronts.functions.connection import local
from cellblock.service.daemon import control
from processes import alive, eventually


def about() -> dict[str, Any]:
    """Return the status of the daemon, which there is."""
    found = control.status()
    assert found is not None
    return found


async def ended(process: int) -> None:
    """Wait until a process has ended."""
    await eventually(lambda: not alive(process))


def kill() -> int:
    """Kill the daemon, and return its process number. The next command starts another one."""
    os.kill(pid := int(about()["pid"]), signal.SIGKILL)
    return pid


async def crash() -> None:
    """Kill the daemon, and wait for its end."""
    await ended(kill())


def switch_off() -> None:
    """Kill the daemon, and its custodian, with which all kernels end."""
    for pid in [(found := about())["pid"], found["custodian"]]:
        os.kill(pid, signal.SIGKILL)


def close_connections() -> None:
    """Close those of this thread now, and not when they are collected."""
    for each in local.__dict__.pop("connections", {}).values():
        each.close()


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
            close_connections()


@contextmanager
def own_daemon(directory: Path) -> Iterator[Path]:
    """Run a daemon of this directory, which everything asks that asks for the daemon."""
    with asking(directory) as home:
        try:
            yield home
        finally:
            control.stop()  # also if a test has killed the daemon that this thread is connected to
