"""Sessions whose checkpoints are dropped with them, and ways to look at them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from cellblock import Host, Rolling, Session
from processes import eventually

QUICK = Rolling(after=0.001)


@asynccontextmanager
async def made(host: Host, workspace: Path, recovery: Rolling | Literal["none"] = QUICK) -> AsyncIterator[Session]:
    """Make a session, and drop its checkpoints in the end: they would live as long as somebody has them."""
    async with host.session(working_dir=workspace, images_dir=workspace, recovery=recovery) as session:
        yield session
        for checkpoint in session.checkpoints():
            await checkpoint.drop()


async def value(session: Session, code: str) -> str:
    """Return the value of an expression in a session."""
    result = await session.execute(code)
    assert result.ok, result.text
    return result.return_value or ""


async def rolled(session: Session) -> None:
    """Wait until the session's last cell has a checkpoint."""

    def made() -> bool:
        checkpoints = session.checkpoints()
        return bool(checkpoints) and checkpoints[-1].execution_count == session.next_count - 1

    await eventually(made)
