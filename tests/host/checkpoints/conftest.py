"""Hosts and sessions in each kind of isolation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, Session
from checkpoint_sessions import made


@pytest.fixture
async def srt_host() -> AsyncIterator[Host]:
    """A host whose sandboxes end with their last session, because each test has a workspace of its own."""
    async with Host(isolate="srt") as host:
        host.kernels.launchers.idle_sandboxes = 0
        yield host


# The quick tests have the sandbox that sessions have by default, and Landlock where `suite.in_turns` is told so.
@pytest.fixture(params=[*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("none", "landlock")), "native", "srt"])
def any_host(request: pytest.FixtureRequest, zygote_host: Host, native_host: Host, landlock_host: Host) -> Host:
    """A warm host of each kind of isolation."""
    if request.param == "srt":  # it may not be installed
        srt: Host = request.getfixturevalue("srt_host")
        return srt
    return {"none": zygote_host, "native": native_host, "landlock": landlock_host}[request.param]


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session without a sandbox, which makes no checkpoint by itself."""
    async with made(host, tmp_path, "none") as session:
        yield session


@pytest.fixture
async def any_session(any_host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session in each kind of isolation, which makes no checkpoint by itself."""
    async with made(any_host, tmp_path, "none") as session:
        yield session


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A directory of its own in the test's: other files of the test lie beside it."""
    (path := tmp_path / "workspace").mkdir()
    return path
