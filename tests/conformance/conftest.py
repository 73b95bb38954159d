"""The suite that every way to run a kernel must pass: each test gets a fresh session of each of them.

To add a way to launch, or a kind of isolation, add a parameter to `WAYS`; no test here may know which one it runs in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cellblock import Host, Session


class Way(NamedTuple):
    """A way to run kernels."""

    launch: str
    isolate: str = "none"


# A spawned kernel takes a second to start, so that these tests run with the slow ones.
WAYS = [pytest.param(Way("zygote"), id="zygote"), pytest.param(Way("spawn"), id="spawn", marks=pytest.mark.slow)]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """The way in which this test's kernels run."""
    way: Way = request.param
    return way


@pytest.fixture
async def host(way: Way, request: pytest.FixtureRequest) -> Host:
    """A warm host that runs kernels in this way."""
    host: Host = request.getfixturevalue(f"{way.launch}_host")
    return host


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A fresh session, run in this way."""
    async with host.session(images_dir=tmp_path / "images") as session:
        yield session
