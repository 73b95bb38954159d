"""Fixtures for tests of programs and files of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, Session


@pytest.fixture(params=["native", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("landlock", "none"))])
async def session(
    request: pytest.FixtureRequest, native_host: Host, landlock_host: Host, zygote_host: Host, tmp_path: Path
) -> AsyncIterator[Session]:
    """A session of each kind, in a workspace of its own."""
    host = {"native": native_host, "landlock": landlock_host, "none": zygote_host}[request.param]
    async with host.session(working_dir=tmp_path, recovery="none") as made:
        yield made
