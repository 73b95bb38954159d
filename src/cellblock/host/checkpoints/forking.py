"""Fork and adopt: create and start branches, close all if one fails, and continue from a branch."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cellblock.common.tasks import despite_cancellation
from cellblock.errors import InvalidInputError
from cellblock.host.checkpoints.branches import check_whole
from cellblock.host.checkpoints.checkpoint import Beginning
from cellblock.host.checks import check_branches
from cellblock.host.snapshots.tree import lasting
from cellblock.model.checkpoints import MAX_FILE_CHANGES

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.model.checkpoints import Changes, FilesMode

B = TypeVar("B")


class Branching(NamedTuple):
    """The arguments of `Session.fork`."""

    n: int
    files: FilesMode | None
    seeds: Sequence[int] | None
    same_random_state: bool
    return_exceptions: bool

    def check(self) -> None:
        """Validate the arguments.

        Raises:
            InvalidInputError: An argument is invalid.
        """
        check_branches(self.n, self.seeds)
        if self.seeds is not None and self.same_random_state:
            raise InvalidInputError("branches have either seeds or the same random state: pass one of the two")
        if self.files not in (None, "shared", "copy"):
            raise InvalidInputError(f"files must be 'shared' or 'copy', not {self.files!r}")

    async def start(
        self,
        copy: Callable[[FilesMode | None], Awaitable[Checkpoint]],
        make: Callable[[Beginning], B],
        start: Callable[[B], Awaitable[None]],
        end: Callable[[B], Awaitable[None]],
    ) -> list[B | BaseException]:
        """Create and start branches of a session.

        Args:
            copy: Creates a temporary checkpoint of the session.
            make: Creates a branch.
            start: Starts a branch.
            end: Closes a branch, started or not.

        Returns:
            The branches; with `return_exceptions`, an exception for each branch that failed to start.
        """
        self.check()
        checkpoint = await copy(self.files)
        # Generators without a state, such as NumPy's before its first use, share a common seed.
        common = secrets.randbits(32) if self.same_random_state else None
        seeds = [common] * self.n if self.seeds is None else self.seeds
        branches: list[B] = []
        try:
            for seed in seeds:
                branches.append(make(Beginning(checkpoint, checkpoint.files, seed, self.same_random_state)))  # noqa: PERF401  # one may fail
            ends = await asyncio.gather(*map(start, branches), return_exceptions=True)
            await checkpoint.drop()
        except BaseException:  # usually a cancelled caller, who does not receive the branches
            checkpoint.discard()
            await _end_all(branches, end)
            raise
        failures = [failure for failure in ends if failure is not None]
        if failures and not self.return_exceptions:
            await _end_all(branches, end)
            raise failures[0]
        return [branch if failure is None else failure for branch, failure in zip(branches, ends, strict=True)]


async def _end_all(branches: Sequence[B], end: Callable[[B], Awaitable[None]]) -> None:
    """Close branches, even while the caller is being cancelled."""

    async def end_all() -> None:
        await asyncio.gather(*map(end, branches), return_exceptions=True)

    await despite_cancellation(asyncio.create_task(end_all()))


async def adopt(trunk: Checkpoints, branch: Checkpoints, files: FilesMode) -> Changes:
    """Continue from another session's state, and leave that session open.

    Args:
        trunk: The session's checkpoints.
        branch: The other session's checkpoints.
        files: ``copy`` if the other session is a branch with its own files. What snapshots exclude of these is moved to the
            trash, because they are deleted with the branch.
    """
    if files == "copy":
        trunk.files_of_branches(files)
    checkpoint, left = await branch.passing_checkpoint(files), list[str]()
    try:
        if checkpoint.snapshot is not None:
            check_whole(checkpoint.snapshot, "restored from the branch: move some files elsewhere, then try again")
            left = [path for path, _ in lasting(checkpoint.snapshot.root)]
        trunk.take(checkpoint, branch)
        changes = await trunk.restore(checkpoint, operation="adopt")
    finally:
        await checkpoint.drop()
    trunk.take_over(branch)
    await trunk.files.take_trash(branch.files)
    trash = await trunk.files.take_left_out(branch.files, left) if left else ""
    # The workspace's own excluded paths at the top, such as `.git`, are in no branch, so they need no report.
    kept = dict.fromkeys([*(path for path in changes.kept if "/" in path), *left[:MAX_FILE_CHANGES]])
    return replace(changes, kept=tuple(kept), trash=changes.trash or trash)
