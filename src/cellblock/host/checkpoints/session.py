"""The checkpoint methods of `Session`, which inherits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, overload

from cellblock.errors import InvalidInputError
from cellblock.host.checkpoints.branches import check_whole
from cellblock.host.checkpoints.checkpoint import Checkpoint
from cellblock.host.checkpoints.forking import Branching
from cellblock.model.checkpoints import FilesMode, Undone

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.session import Session, SessionHost
    from cellblock.model.checkpoints import Changes


class WithCheckpoints:
    """The methods of a session that make checkpoints, go back to them, and branch."""

    _checkpoints: Checkpoints
    _host: SessionHost

    async def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> Checkpoint:
        """Keep the present state of the session's memory, to go back to later, any number of times.

        The kernel is forked, and the copy waits. That takes a few milliseconds, and memory only for later changes. What a copy
        of a process cannot have is lost when the session goes back: threads, and the connections of sockets
        (docs/checkpoints.md).

        Args:
            name: Its name.
            files: Whether the workspace's files belong to the state (``copy``), or stay as they are (``shared``).

        Raises:
            SnapshotError: The files cannot be kept. There is no checkpoint then.
            CheckpointError: The state would not survive, for example because of a library with its own threads. The message
                 names it and gives advice. The session continues.
            InvalidInputError, StateError, LaunchError, KernelDiedError: As for `execute`.
        """
        return await self._checkpoints.make(name, files)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the session's checkpoints, oldest first, including automatic ones."""
        return self._checkpoints.all()

    @property
    def checkpoint_refused(self) -> str:
        """Why the last automatic checkpoint was not made; empty if it was."""
        return self._checkpoints.automatic.skipped

    async def restore(self, checkpoint: Checkpoint | str) -> Changes:
        """Go back to a checkpoint of this session, or of any session of the same host, even a closed one.

        A running cell is stopped, as by `reset`. If going back fails, the session stays as it is.

        Args:
            checkpoint: A checkpoint, or the name or id of one of this session. It stays.

        Returns:
            Which files were brought back, if it was made with ``files="copy"``.

        Raises:
            CheckpointError: It is gone, or belongs to another host.
            SnapshotError: The files cannot be brought back.
            StateError, LaunchError: As for `reset`.
        """
        return await self._checkpoints.restore(checkpoint)

    def note_outside(self, call: str) -> None:
        """Record an outside call that was allowed just now, so that a later host can tell what no undo undoes."""
        self._checkpoints.note_outside(call)

    @property
    def states_lost(self) -> bool:
        """Whether it continues with a kernel of an earlier host whose checkpoints are lost."""
        return bool(self._checkpoints.ended)

    @property
    def past_since(self) -> float:
        """Start of `history` in seconds since the epoch, if an earlier host has recorded it; else 0."""
        return self._checkpoints.past_since

    async def undo(self, count: int = 1, *, partial: bool = False) -> Undone:
        """Go back over the last cells: variables, directory, environment, execution count, history, and files.

        Exactly these cells are undone, or none: if something cannot be restored, such as the files of a workspace that is too
        large to keep, nothing is changed (docs/checkpoints.md).

        Args:
            count: How many cells.
            partial: Whether to go back to the last checkpoint from before these cells, even if that undoes more of them, and
                 to leave files as they are if they cannot be restored. The result says so.

        Returns:
            What was undone.

        Raises:
            CheckpointError: There are fewer cells, or they cannot be undone exactly; with `partial`, there is no checkpoint
                from before them.
            InvalidInputError, StateError, LaunchError: As for `restore`.
        """
        return await self._checkpoints.undo(count, partial=partial)

    @overload
    async def fork(
        self,
        n: int = ...,
        *,
        files: FilesMode | None = ...,
        seeds: Sequence[int] | None = ...,
        same_random_state: bool = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[Session]: ...
    @overload
    async def fork(
        self,
        n: int = ...,
        *,
        files: FilesMode | None = ...,
        seeds: Sequence[int] | None = ...,
        same_random_state: bool = ...,
        return_exceptions: Literal[True],
    ) -> list[Session | BaseException]: ...
    async def fork(
        self,
        n: int = 1,
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
        return_exceptions: bool = False,
    ) -> list[Session] | list[Session | BaseException]:
        """Make sessions that start from this one's present state, independent of it and of each other.

        They share this session's sandbox: its view of the file system, its network, and its limit of processes.

        Args:
            n: How many.
            files: ``copy`` gives each branch the files of the workspace in a directory of its own, which is its working
                directory and is removed with it. With ``shared``, all work in one directory. By default ``copy`` if the
                session has a ``working_dir``, else ``shared``.
            seeds: For each branch, the seed of `random`, and of NumPy's and PyTorch's own generators if they are imported; by
                default a new one. Generators in variables are copied with their state, like all variables.
            same_random_state: Whether these generators continue from this session's state. Not together with `seeds`.
            return_exceptions: Whether a branch that could not be started is returned as its exception. Otherwise the others
                are closed, and the first exception is raised.

        Returns:
            The sessions, started. The caller closes them; at the latest, their host does.

        Raises:
            SnapshotError: The files cannot be copied: they are too many, too large, or there is no space.
            InvalidInputError: ``files="copy"``, and the session has no ``working_dir``; another argument is wrong.
            CheckpointError, LaunchError: As for `checkpoint` and `start`.
        """
        branching = Branching(n, files, seeds, same_random_state, return_exceptions)
        host = self._host
        return await branching.start(
            self, lambda beginning: host.session(start_from=beginning), lambda one: one.start(), lambda one: one.close()
        )

    def check_files_of_branches(self, files: FilesMode | None) -> FilesMode:
        """Return how the files of this session's branches are handled.

        Args:
            files: The mode that was passed; None for the default.

        Raises:
            InvalidInputError: The session has no directory of its own.
        """
        own = self._checkpoints.files.own
        if files == "copy" and not own:
            raise InvalidInputError("files='copy' needs a session with a working_dir of its own: this one has none")
        return files or ("copy" if own else "shared")

    async def adopt(self, branch: Session) -> Changes:
        """Continue with the state of another session of the same host, and close that session.

        If it is a branch with its own files, they replace those of this session's workspace, as with `restore`.

        Args:
            branch: The session, usually one that `fork` has made.

        Returns:
            Which files have changed.

        Raises:
            CheckpointError, SnapshotError, StateError, LaunchError: As for `checkpoint` and `restore`. Both sessions stay as
                they are.
            InvalidInputError: It is this session.
        """
        if branch is self:
            raise InvalidInputError("a session cannot adopt itself")
        files = branch.files_mode
        if files == "copy":
            self.check_files_of_branches(files)
        checkpoint = await branch.checkpoint(files=files)
        try:
            if checkpoint.snapshot is not None:
                check_whole(checkpoint.snapshot, "brought back from the branch: move some elsewhere, then try again")
            changes = await self.restore(checkpoint)
        finally:
            await checkpoint.drop()
        self._checkpoints.take_over(branch._checkpoints)  # noqa: SLF001  # the same class
        await branch.close()
        # No branch contains what is left out at the top of the workspace, such as `.git`: no need to report that it stays.
        return replace(changes, kept=tuple(path for path in changes.kept if "/" in path))
