"""Sessions that are copied, and programs, each in a fork of a process that has imported what they need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from cellblock import Host, Session
from scripts import Script
from warm_python import WarmPython


@pytest.fixture
async def session(host: Host) -> AsyncIterator[Session]:
    """A fresh session on a warm host, with a copy after each cell."""
    async with host.session() as session:
        yield session


@pytest.fixture(scope="package")
def warm_python() -> Iterator[WarmPython]:
    """A process that has imported what copies of a kernel need."""
    python = WarmPython("asyncio", "multiprocessing", "threading", "cellblock.worker.forks.safety")
    yield python
    python.close()


@pytest.fixture
def printed(warm_python: WarmPython) -> Script:
    """Run a script."""

    def run(script: str) -> list[str]:
        done = warm_python.run(f"__import__('signal').alarm(0)  # copies would tell of it\n{script}")
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()

    return run


@pytest.fixture
def refusals(printed: Script) -> Script:
    """Run a script that has the functions of `worker.forks.safety`."""
    return lambda script: printed(f"import os, sys, threading, time\nfrom cellblock.worker.forks.safety import *\n{script}")
