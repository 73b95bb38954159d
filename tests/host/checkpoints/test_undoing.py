"""Which way an undo goes, and what it says if there is none."""

from __future__ import annotations

import pytest

from cellblock import Exact, Host
from cellblock.errors import CheckpointError, InvalidInputError


async def test_undo_without_checkpoints_is_an_error_that_says_why(zygote_host: Host) -> None:
    async with zygote_host.session(recovery="none") as session:
        await session.execute("1")
        await session.execute("2")
        why = (
            r"^there is no checkpoint from before that cell: the session was made with recovery='none'; all 2 can be "
            r"undone; an undo with partial undoes all$"
        )
        with pytest.raises(CheckpointError, match=why):
            await session.undo()
        assert len((await session.undo(2)).cells) == 2
        for wrong in (0, -1, True, "1"):
            with pytest.raises(InvalidInputError):
                await session.undo(wrong)  # type: ignore[arg-type]


async def test_no_more_cells_are_undone_than_are_kept_and_what_can_be_is_said(zygote_host: Host) -> None:
    async with zygote_host.session(recovery=Exact(keep=1)) as session:
        for number in range(4):
            await session.execute(f"x = {number}")
        why = (
            "checkpoint of the last cell is kept, .*; the last cell, or all 4 can be undone; an undo with partial undoes all$"
        )
        with pytest.raises(CheckpointError, match=why):
            await session.undo(2)
        assert (await session.execute("x")).return_value == "3"
        assert [cell.code for cell in (await session.undo()).cells] == ["x"]


async def test_who_goes_back_and_forth_is_told_of_the_limit(zygote_host: Host) -> None:
    """Checkpoints of older cells stay dropped, although there are fewer than the limit after an undo."""
    async with zygote_host.session(recovery=Exact(keep=3)) as session:
        for number in range(5):
            await session.execute(f"x = {number}")
        await session.undo(2)
        with pytest.raises(
            CheckpointError, match=r"only the checkpoints of the last 3 cells are kept, .*; the last cell, or all 3"
        ):
            await session.undo(2)


async def test_a_branch_goes_back_to_its_beginning_at_most(zygote_host: Host) -> None:
    async with zygote_host.session() as session:
        await session.execute("x = 1")
        (branch,) = await session.fork()
        async with branch:
            with pytest.raises(CheckpointError, match="before that cell: the session began after it, from a branch"):
                await branch.undo()
            await branch.execute("x = 2")
            with pytest.raises(CheckpointError, match=r"began after some of them, .*; the last cell can be undone"):
                await branch.undo(2)
            await branch.undo()
            assert (await branch.execute("x")).return_value == "1"
