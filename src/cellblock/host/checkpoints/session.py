"""What a session offers about checkpoints: `Session` inherits it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

from cellblock.errors import InvalidInputError
from cellblock.host.checkpoints.checkpoint import Checkpoint
from cellblock.host.checks import check_branches
from cellblock.host.kernels.stopping import despite_cancellation
from cellblock.model.checkpoints import FilesMode, Undone

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.session import Session, SessionHost
    from cellblock.snapshots import Changes


async def _close_all(branches: Sequence[Session]) -> None:
    """Close branches, also while the caller is being cancelled."""

    async def close_all() -> None:
        await asyncio.gather(*(branch.close() for branch in branches), return_exceptions=True)

    await despite_cancellation(asyncio.create_task(close_all()))


class WithCheckpoints:
    """The methods of a session that make checkpoints, go back to them, and branch."""

    _checkpoints: Checkpoints
    _host: SessionHost

    async def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> Checkpoint:
        """Keep the state that the session's memory has now, to go back to later, any number of times.

        The kernel is forked, and the copy waits. That takes a few milliseconds, and memory only for what changes later. What a
        copy of a process cannot have is lost when the session goes back: threads, and the connections of sockets
        (docs/checkpoints.md).

        Args:
            name: What to call it.
            files: Whether the state of the workspace's files belongs to it (``copy``), or they stay as they are (``shared``).

        Raises:
            SnapshotError: The files cannot be kept. There is no checkpoint then.
            CheckpointError: The state would not survive, for example because of a library with threads of its own. The message
                names it, and says what to do. The session goes on.
            InvalidInputError, StateError, LaunchError, KernelDiedError: As for `execute`.
        """
        return await self._checkpoints.make(name, files)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the session's checkpoints, oldest first, also those that were made without being asked for."""
        return self._checkpoints.all()

    @property
    def checkpoint_refused(self) -> str:
        """Why the last automatic checkpoint was not made; empty if it was."""
        return self._checkpoints.skipped

    async def restore(self, checkpoint: Checkpoint) -> Changes:
        """Go back to a checkpoint: of this session, or of another one of the same host, also of one that was closed.

        What runs is stopped, as by `reset`. If going back fails, the session stays as it is.

        Args:
            checkpoint: The checkpoint, which stays.

        Returns:
            Which files were brought back, if it was made with ``files="copy"``.

        Raises:
            CheckpointError: It is gone, or belongs to another host.
            SnapshotError: The files cannot be brought back.
            StateError, LaunchError: As for `reset`.
        """
        return await self._checkpoints.restore(checkpoint)

    async def undo(self, count: int = 1) -> Undone:
        """Go back over the last cells: variables, directory, environment, execution count, history, and files.

        Files come back if the session has a ``working_dir`` of its own that is not too large (docs/checkpoints.md).

        The session goes back to the last checkpoint from before these cells, which may undo more: if cells follow each other
        at once, there is no checkpoint between them.

        Args:
            count: How many cells.

        Returns:
            What was undone.

        Raises:
            CheckpointError: There are not so many cells, or there is no checkpoint from before them.
            InvalidInputError, StateError, LaunchError: As for `restore`.
        """
        return await self._checkpoints.undo(count)

    @overload
    async def fork(
        self,
        n: int = ...,
        *,
        seeds: Sequence[int] | None = ...,
        same_random_state: bool = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[Session]: ...
    @overload
    async def fork(
        self,
        n: int = ...,
        *,
        seeds: Sequence[int] | None = ...,
        same_random_state: bool = ...,
        return_exceptions: Literal[True],
    ) -> list[Session | BaseException]: ...
    async def fork(
        self,
        n: int = 1,
        *,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
        return_exceptions: bool = False,
    ) -> list[Session] | list[Session | BaseException]:
        """Make sessions that begin with the state that this one has now, and are independent of it and of each other.

        They share the sandbox with this session: its view of the file system, its network, and its limit of processes.

        Args:
            n: How many.
            seeds: What the random generators of each begin with; by default something new in each.
            same_random_state: Whether they go on where those of this session are.
            return_exceptions: Whether a branch that could not be started is returned as its exception. Otherwise the others
                are closed, and the first exception is raised.

        Returns:
            The sessions, started. They are the caller's to close; at the latest, their host closes them.

        Raises:
            CheckpointError, LaunchError: As for `checkpoint` and `start`.
        """
        check_branches(n)
        if seeds is not None and len(seeds) != n:
            raise InvalidInputError(f"there must be as many seeds as branches, {n}, not {len(seeds)}")
        checkpoint = await self._checkpoints.make("", "shared")
        branches: list[Session] = []
        try:
            branches += [self._host.session(start_from=checkpoint) for _ in range(n)]
            for index, branch in enumerate(branches):
                branch.begin_randomly(None if seeds is None else seeds[index], same=same_random_state)
            ends = await asyncio.gather(*(branch.start() for branch in branches), return_exceptions=True)
            await checkpoint.drop()
        except BaseException:  # mostly a cancelled caller, who does not get the branches: nobody else can close them
            checkpoint.discard()
            await _close_all(branches)
            raise
        failures = [end for end in ends if end is not None]
        if failures and not return_exceptions:
            await _close_all(branches)
            raise failures[0]
        return [branch if end is None else end for branch, end in zip(branches, ends, strict=True)]

    def begin_randomly(self, seed: int | None, *, same: bool) -> None:
        """Say what the random generators of the first kernel begin with, if that is made of a checkpoint.

        Args:
            seed: A number; None for something new.
            same: Whether they go on where those of the checkpoint are instead.
        """
        self._checkpoints.seed, self._checkpoints.same_random_state = seed, same

    async def adopt(self, branch: Session) -> None:
        """Go on with the state of another session of the same host, which is closed by that.

        Args:
            branch: The session, mostly one that `fork` has made.

        Raises:
            CheckpointError, StateError, LaunchError: As for `checkpoint` and `restore`. Both sessions stay as they are.
        """
        checkpoint = await branch.checkpoint()
        try:
            await self.restore(checkpoint)
        finally:
            await checkpoint.drop()
        await branch.close()
