"""What conftest.py files share. Each of these is imported under two names, and so they cannot share what changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cellblock import Host

shared: list[Host] = []
"""Warm hosts that all tests use"""

selection = {"slow": True}
"""Which tests are run"""

SUMMARY = "summary"
"""A property of a test's report: what is shown at the end of the run"""


@asynccontextmanager
async def sharing(host: Host) -> AsyncIterator[Host]:
    """Have a host run for all tests that ask for it."""
    async with host:
        host.store()  # which it makes when it is first needed, and then has a descriptor of
        shared.append(host)
        yield host
        shared.remove(host)


def without_slow(params: Sequence[Any]) -> list[Any]:
    """Return the parameters of a fixture without those that are marked slow, if slow tests are not run.

    Pytest would make thousands of tests of them in every process, and leave them out then. That takes seconds.
    """
    return [param for param in params if selection["slow"] or not any(mark.name == "slow" for mark in param.marks)]


def spread(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return tests with the long ones spread among the others, and none of them near the end.

    Each process begins with tests that follow each other, and gets fewer and fewer from then on. Long ones that follow each
    other would keep one process busy for many minutes after the others have ended.
    """
    long = [item for item in items if item.get_closest_marker("long")]
    found = [item for item in items if not item.get_closest_marker("long")]
    step = len(found) * 2 // 3 // max(len(long), 1) + 1
    for number, item in enumerate(long):
        found.insert(number * step, item)
    return found
