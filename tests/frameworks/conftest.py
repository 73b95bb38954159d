"""What all suites of frameworks share: a home of their own for cellblock, and the counts for the table."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

_counts: Counter[str] = Counter()
_published: set[str] = set()


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """State of cellblock that is nobody else's, and an empty directory to be in."""
    before, home = os.getcwd(), tmp_path_factory.mktemp("home")
    os.environ["CELLBLOCK_HOME"] = str(home)
    os.chdir(tmp_path_factory.mktemp("here"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs coroutines, also those of the suites."""
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
async def one_loop(nothing_left_behind: None, anyio_backend: str) -> AsyncIterator[None]:
    """One event loop for the whole suite: its sessions share a warm host."""
    yield  # noqa: PT022  # the loop lasts as long as a fixture that yields


@pytest.fixture(autouse=True, scope="session")
def nothing_left_behind(own_home: None) -> Iterator[None]:
    """No process and no workspace of a session is left when the suite has ended."""
    yield
    from cellblock.common import loop_thread

    loop_thread.shared().close()
    left = [int(pid) for pid in _children(os.getpid())]
    assert left == [], f"processes of the suite are left: {left}"


def _children(pid: int) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended: its children are another one's
            found += (task / "children").read_text().split()
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note which tests are a framework's own: those of a suite that it publishes."""
    for item in items if "FRAMEWORKS_COUNTS" in os.environ else ():
        if not getattr(getattr(item, "function", None), "__module__", "").startswith("suite_"):
            _published.add(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count outcomes: each test once, by its call, or by a set-up that skipped it or failed."""
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        kind = "published" if report.nodeid in _published else "own"
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        _counts[f"{kind} {outcome}"] += 1


def pytest_sessionfinish() -> None:
    """Hand the counts to run.py."""
    if path := os.environ.get("FRAMEWORKS_COUNTS"):
        Path(path).write_text(json.dumps(_counts), encoding="utf-8")
