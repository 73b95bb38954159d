"""Sessions whose checkpoints are dropped with them, and ways to look at them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from cellblock import Host, Rolling, Session
from cellblock.host.kernels.pairs import files_time
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


async def run(session: Session, *cells: str) -> None:
    """Run cells, each of which can be undone."""
    for code in cells:
        result = await session.execute(code)
        assert (result.status, result.not_undoable) == ("success", ""), result.text


async def wait_for_clock() -> None:
    """Wait until what changes now has another time than what has changed before: the clock of files goes in steps."""
    now = files_time()
    await eventually(lambda: files_time() > now + 20_000_000)


def tree(top: Path) -> dict[str, str]:
    """Return the content of each file of a workspace, and an empty text for folders and links."""
    paths = (path for path in top.rglob("*") if not path.name.startswith("."))
    return {str(path.relative_to(top)): path.read_text() if path.is_file() else "" for path in paths}
