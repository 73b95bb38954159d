"""One checkpoint: how long it lives, and what it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import CheckpointError, Host, Session
from checkpoint_sessions import value


async def test_a_checkpoint_outlives_the_kernel_and_the_session_that_made_it(any_host: Host, tmp_path: Path) -> None:
    async with any_host.session(working_dir=tmp_path, images_dir=tmp_path, recovery="none") as session:
        await session.execute("x = 1")
        checkpoint = await session.checkpoint()
        result = await session.execute("import os; os.kill(os.getpid(), 9)")
        assert (result.recovery, result.state_lost) == ("restarted", True)
        await session.restore(checkpoint)
        assert await value(session, "x") == "1"
    async with any_host.session(start_from=checkpoint) as other:
        assert await value(other, "x") == "1"
        assert other.workspace == str(tmp_path)
        assert [entry.code for entry in other.history()] == ["x = 1", "x"]
    await checkpoint.drop()
    await checkpoint.drop()
    with pytest.raises(CheckpointError, match="no longer exists"):
        await any_host.session(start_from=checkpoint).start()


async def test_a_copy_has_no_connection_and_no_output_of_the_original(any_session: Session) -> None:
    """Files have positions of their own, and sockets look closed, so that two kernels never speak on one connection."""
    await any_session.execute(
        """
        import asyncio
        file = open("notes.txt", "w+"); file.write("one"); file.flush()
        """
    )
    checkpoint = await any_session.checkpoint()
    await any_session.execute("file.write('two'); file.flush()")
    (branch,) = await any_session.fork()
    await any_session.restore(checkpoint)
    assert await value(any_session, "file.tell()") == "3"
    assert await value(branch, "file.tell()") == "6"
    await branch.close()
