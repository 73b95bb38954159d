"""Sandboxed sessions to attack."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, Session
from cellblock.sandbox.syscall_numbers import AARCH64, X86_64
from cells import ok

NUMBERS = {"x86_64": X86_64, "aarch64": AARCH64}[os.uname().machine]

_INSIDE = (Path(__file__).parent / "inside.py").read_text()


async def arm(session: Session) -> Session:
    """Give a session the attacker's tools, and the numbers of system calls as ``NR``."""
    await ok(session, f"{_INSIDE}\nNR = {NUMBERS!r}")
    return session


@pytest.fixture(scope="session")
async def cell(native_host: Host, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """One sandboxed session for all attacks that change nothing."""
    place = tmp_path_factory.mktemp("cell")
    async with native_host.session(working_dir=place, images_dir=place / "images") as session:
        yield await arm(session)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The directory that an attacked session may write."""
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
async def jail(native_host: Host, workspace: Path, tmp_path: Path) -> AsyncIterator[Session]:
    """A fresh sandboxed session, with the attacker's tools."""
    async with native_host.session(working_dir=workspace, images_dir=tmp_path / "images") as session:
        yield await arm(session)
