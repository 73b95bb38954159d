"""What a session offers about checkpoints: `Session` inherits it."""

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
        """Return the session's checkpoints, oldest first, also those that were made automatically."""
        return self._checkpoints.all()

    @property
    def checkpoint_refused(self) -> str:
        """Why the last automatic checkpoint was not made; empty if it was."""
        return self._checkpoints.automatic.skipped

    async def restore(self, checkpoint: Checkpoint | str) -> Changes:
        """Go back to a checkpoint: of this session, or of another one of the same host, also of one that was closed.

        What runs is stopped, as by `reset`. If going back fails, the session stays as it is.

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
        """Take note of what was allowed outside the session just now, so that a later host can say what no undo undoes."""
        self._checkpoints.note_outside(call)

    @property
    def states_lost(self) -> bool:
        """Whether it goes on with a kernel of an earlier host whose checkpoints are lost."""
        return bool(self._checkpoints.ended)

    @property
    def past_since(self) -> float:
        """When what `history` knows begins, in seconds since the epoch, if an earlier host has written it down; else 0."""
        return self._checkpoints.past_since

    async def undo(self, count: int = 1, *, partial: bool = False) -> Undone:
        """Go back over the last cells: variables, directory, environment, execution count, history, and files.

        Exactly these cells are undone, or none: if something cannot come back, such as the files of a workspace that is too
        large to be kept, nothing is changed (docs/checkpoints.md).

        Args:
            count: How many cells.
            partial: Whether to go back to the last checkpoint from before these cells, even if that undoes more of them, and
                to leave files as they are if they cannot come back. The result says so.

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
        """Make sessions that begin with the state that this one has now, and are independent of it and of each other.

        They share the sandbox with this session: its view of the file system, its network, and its limit of processes.

        Args:
            n: How many.
            files: ``copy`` gives each branch the files of the workspace in a directory of its own, which is its working
                directory and is removed with it. With ``shared``, all work in one directory. By default ``copy`` if the
                session has a ``working_dir``, else ``shared``.
            seeds: What `random`, and NumPy's and PyTorch's own generators if they are imported, begin with in each branch; by
                default something new. Generators in variables are copied with their state, as all variables are.
            same_random_state: Whether these generators go on where those of this session are. Not together with `seeds`.
            return_exceptions: Whether a branch that could not be started is returned as its exception. Otherwise the others
                are closed, and the first exception is raised.

        Returns:
            The sessions, started. They are the caller's to close; at the latest, their host closes them.

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
        """Return what becomes of the files of this session's branches.

        Args:
            files: What was asked; None for nothing.

        Raises:
            InvalidInputError: The session has no directory of its own.
        """
        own = self._checkpoints.files.own
        if files == "copy" and not own:
            raise InvalidInputError("files='copy' needs a session with a working_dir of its own: this one has none")
        return files or ("copy" if own else "shared")

    async def adopt(self, branch: Session) -> Changes:
        """Go on with the state of another session of the same host, which is closed by that.

        If it is a branch with files of its own, these replace the ones of this session's workspace, as `restore` does it.

        Args:
            branch: The session, mostly one that `fork` has made.

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
        # No branch has what is left out at the top of the workspace, such as `.git`: it need not be said that it stays.
        return replace(changes, kept=tuple(path for path in changes.kept if "/" in path))
