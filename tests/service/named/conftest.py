"""Named sessions on a warm host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store.named import NamedStore


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Where sessions outlive a process."""
    return tmp_path / "state"


@pytest.fixture
async def sessions(
    zygote_host: Host, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[NamedSessions]:
    """Named sessions on a warm host."""
    monkeypatch.chdir(tmp_path)
    sessions = NamedSessions(zygote_host, NamedStore(state))
    yield sessions
    await sessions.close()
