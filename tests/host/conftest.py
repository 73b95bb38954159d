"""Sessions for what hosts do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, Session


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A fresh session on a warm host. It makes no copies for undo, which take half of the time."""
    async with host.session(images_dir=tmp_path / "images", recovery="none") as session:
        yield session
