"""Sandboxed sessions to attack."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import Host, Session
from cellblock.walls.linux import landlock
from cellblock.walls.linux.syscall_numbers import BY_MACHINE
from cells import ok
from suite import sharing, without_slow

from .landlock import DIFFERENT

NUMBERS = BY_MACHINE[os.uname().machine]

_INSIDE = (Path(__file__).parent / "inside.py").read_text()


_restoring: set[Host] = set()
"""Hosts whose sessions are attacked in kernels that were made of checkpoints"""


async def arm(session: Session) -> Session:
    """Give a session the attacker's tools, and the numbers of system calls as ``NR``."""
    await ok(session, f"{_INSIDE}\nNR = {NUMBERS!r}")
    if session._host in _restoring:
        checkpoint = await session.checkpoint()
        await session.restore(checkpoint)
        await checkpoint.drop()
    return session


@asynccontextmanager
async def armed_session(host: Host, workspace: Path, **options: Any) -> AsyncIterator[Session]:
    """A fresh session in a directory, with the attacker's tools."""
    async with host.session(working_dir=workspace, images_dir=workspace.parent / "images", **options) as session:
        yield await arm(session)


# In a native sandbox with names as if there were no other, because the table of attacks and the mutations name them.
SANDBOXES = [
    pytest.param("native", id=pytest.HIDDEN_PARAM),
    pytest.param("landlock", marks=pytest.mark.slow),
    pytest.param("restored", marks=pytest.mark.slow),
]


@pytest.fixture(scope="session")
async def restored_host() -> AsyncIterator[Host]:
    """A warm host whose sessions are attacked in kernels that were made of checkpoints."""
    async with sharing(Host(isolate="native")) as host:
        _restoring.add(host)
        yield host


KERNELS = [
    pytest.param("first", id=pytest.HIDDEN_PARAM),
    pytest.param("restored", marks=pytest.mark.slow),
    pytest.param("branch", marks=pytest.mark.slow),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is different under Landlock: `DIFFERENT` says how. And what `cell` does by itself for all its tests."""
    items[:] = [item for item in items if not _differs(item) and not _twice(item)]


def _twice(item: pytest.Item) -> bool:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return "cell" in params and params.get("attacked_host") == "restored"


def _differs(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    name, parameters = item.originalname.removeprefix("test_"), item.callspec.id.removeprefix("landlock-")
    return item.callspec.params.get("attacked_host") == "landlock" and bool({name, f"{name}[{parameters}]"} & {*DIFFERENT})


@pytest.fixture(scope="session", params=without_slow(SANDBOXES))
def attacked_host(request: pytest.FixtureRequest) -> Host:
    """A warm host that sandboxes its kernels, in both kinds of sandbox that are ours."""
    if request.param == "landlock" and (missing := landlock.missing()):
        pytest.skip("; ".join(missing))
    host: Host = request.getfixturevalue(f"{request.param}_host")
    return host


@pytest.fixture(scope="session", params=without_slow(KERNELS))
async def cell(
    request: pytest.FixtureRequest, attacked_host: Host, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Session]:
    """One sandboxed session for all attacks that change nothing: in its first kernel, in one that was restored, and a branch."""
    place = tmp_path_factory.mktemp("cell")
    # Checkpoints that it makes by itself would look like what a test has left behind.
    async with attacked_host.session(working_dir=place, images_dir=place / "images", recovery="none") as session:
        await arm(session)
        if request.param == "first":
            yield session
        elif request.param == "restored":
            checkpoint = await session.checkpoint()
            await session.restore(checkpoint)
            await checkpoint.drop()
            yield session
        else:
            (branch,) = await session.fork()
            await session.close()
            async with branch:
                yield branch


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The directory that an attacked session may write."""
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
async def jail(attacked_host: Host, workspace: Path) -> AsyncIterator[Session]:
    """A fresh sandboxed session, with the attacker's tools, and with no process but its own two."""
    async with armed_session(attacked_host, workspace, recovery="none") as session:
        yield session
