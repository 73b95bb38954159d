"""A plugin of pytest that writes down how much processor time each test takes, with all processes that it starts.

    .venv/bin/python -m pytest -p processor_time -m slow

It writes a line of JSON for each test to build/processor-time.jsonl: its name and seconds. On a busy machine these say more
than seconds that pass. What goes on below another process when a test has ended, such as a daemon, is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from processes import tree

REPORT = Path(__file__).parents[1] / "build" / "processor-time.jsonl"
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_sessionstart() -> None:
    """Begin a new report."""
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("")


def used() -> float:
    """Return the seconds that this process has used, with those below it and those that these have waited for."""
    ticks = 0
    for pid in (os.getpid(), *tree(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure one test, with what it sets up."""
    before = used()
    outcome = yield
    with REPORT.open("a") as file:
        file.write(json.dumps([item.nodeid, round(used() - before, 2)]) + "\n")
    return outcome
