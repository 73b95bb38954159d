"""The methods of `Session` that move its state in and out; it inherits them."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock.host import exchange
from cellblock.host.checkpoints.checkpoints import Checkpoints
from cellblock.host.checks import DEFAULT_TIMEOUT, check_timeout
from cellblock.host.session_cells import WithCells
from cellblock.model import HistoryEntry

if TYPE_CHECKING:
    from cellblock.host.checkpoints.aside import LastState
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.files import Files
    from cellblock.host.files.walls import Walls
    from cellblock.host.saving import Ends
    from cellblock.model.checkpoints import StateChanges
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable


class WithValues(WithCells):
    """The methods of a session that move its variables in and out, save it, and load a saved one.

    Attributes:
        loaded: The report of `load`; None if nothing was loaded.
    """

    loaded: LoadReport | None
    _cwd: str
    _walls: Walls | None
    _checkpoints: Checkpoints

    async def put(self, name: str, value: object) -> None:
        """Set a variable of the session.

        Supported values are text, bytes, numbers, lists and dicts, NumPy arrays, data frames of pandas and polars, and tables
        of pyarrow (docs/sessions.md). Nothing but the variable remains: no file, and no cell in the history.

        Args:
            name: The variable.
            value: The value.

        Raises:
            InvalidInputError: The name is not valid, the value is not supported, or it exceeds the limits of a cell.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        await exchange.put(self._cells.run_silently, self._room, name, value)

    async def get(self, name: str, *, unpickle: bool = False) -> Any:
        """Return the value of a variable of the session, if it is of a type that `put` supports.

        Args:
            name: The variable.
            unpickle: Whether to pickle any other value, and unpickle it here. The session's code can then run anything in this
                program.

        Raises:
            InvalidInputError: There is no such variable, its value is not supported, or it exceeds the limits of a cell.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        return await exchange.get(self._cells.run_silently, self._room, name, unpickle=unpickle)

    async def variables(self) -> list[Variable]:
        """Return the variables of the session: type, size, shape, and a short text of each.

        No method that the session's code has defined is called for it. If there are many thousands, only the first ones are
        returned, as many as fit in a message of 1 MB.

        Raises:
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        return [*(await exchange.survey(self._cells.run_silently)).variables.values()]

    async def diff(self, checkpoint: Checkpoint | str) -> StateChanges:
        """Return the changes since a checkpoint: variables that are new, changed or deleted.

        Files of the workspace are compared too, if the checkpoint holds them (``files="copy"``). Values are compared by hashes
        of their pickles, for which a temporary kernel is made from the checkpoint. Values that cannot be compared, such as a
        lock, or not within two seconds, are listed as unknown.

        Args:
            checkpoint: A checkpoint of any session of the same host, or the name or id of one of this session.

        Raises:
            CheckpointError: It is gone, or belongs to another host.
            SnapshotError: The files cannot be read.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        from cellblock.host.checkpoints.diff import diff  # few programs need it

        return await diff(self._cells, self._checkpoints, checkpoint)

    async def save(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> SaveReport:
        """Save the session to a file, from which `load` and `Host.load` continue it, on this machine or another one.

        Variables, imports, functions and classes of the session, the code of its cells, its working directory, and environment
        variables that the code has changed are saved (docs/checkpoints.md). The report lists what cannot be saved. The
        session's code does the pickling, in its sandbox.

        Args:
            path: The file. An existing one is replaced, but only when the new one is complete.
            workspace: Whether to save the files of the workspace too.
            timeout: Time limit for pickling, in seconds.

        Raises:
            InvalidInputError: The path is not valid.
            StoreError: It cannot be written. An existing file is unchanged.
            ExecutionTimeoutError: Pickling took too long.
            FilesError: A file of the workspace cannot be read.
            StateError, LaunchError, KernelDiedError, ProtocolError: As for `execute`, but raised.
        """
        from cellblock.host import saving  # few sessions are saved

        check_timeout(timeout)
        return await saving.save(self._ends, path, self._cells.past.present, workspace=workspace, timeout=timeout)

    @property
    def last_state(self) -> LastState:
        """The last state that no cell is changing."""
        from cellblock.host.checkpoints.aside import last_state

        return last_state(self._cells, self._checkpoints)

    async def save_aside(self, state: int, path: str | os.PathLike[str], *, timeout: float = DEFAULT_TIMEOUT) -> SaveReport:
        """Save a state that has an automatic checkpoint, with its files, while cells continue.

        A temporary kernel is made from the checkpoint for that.

        Args:
            state: The state's number (`last_state`).
            path: As for `save`.
            timeout: As for `save`.

        Raises:
            CheckpointError: There is no checkpoint of that state.
            CellblockError: As for `save`.
        """
        from cellblock.host.checkpoints.aside import save

        return await save(self._cells, self._checkpoints, self._ends, state, path, timeout)

    async def load_missing(
        self, path: str | os.PathLike[str], *, workspace: bool = True, timeout: float | None = DEFAULT_TIMEOUT
    ) -> list[str]:
        """Continue a saved session as `load` does. Of its files, only missing ones are restored.

        Args:
            path: As for `load`.
            workspace: Whether to restore files, if the saved session has some.
            timeout: As for `load`.

        Returns:
            Existing files that differ from the saved ones.

        Raises:
            CellblockError: As for `load`.
        """
        changed: list[str] = []
        await self._load(path, workspace=workspace, timeout=timeout, changed=changed)
        return changed

    async def load(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> LoadReport:
        """Continue a session that was saved to a file. This session's own state is lost: it gets a fresh kernel.

        The report lists what cannot be restored, such as a variable of a library that is not installed here. The file may come
        from anywhere: its code runs only in this session's sandbox, like a cell.

        Args:
            path: The file.
            workspace: Whether to unpack the saved files. They replace files of the same names.
            timeout: Time limit for loading, in seconds.

        Raises:
            InvalidInputError: It is not a saved session, or is damaged. This session is unchanged.
            StoreError: It cannot be read.
            ExecutionTimeoutError: Loading took too long.
            FilesError: The files cannot be unpacked.
            StateError, LaunchError, KernelDiedError, ProtocolError: As for `execute`, but raised.
        """
        return await self._load(path, workspace=workspace, timeout=timeout)

    async def _load(
        self, path: str | os.PathLike[str], *, workspace: bool, timeout: float | None, changed: list[str] | None = None
    ) -> LoadReport:
        from cellblock.host import saving  # few sessions are loaded

        check_timeout(timeout)
        self.loaded, cells = await saving.load(
            self._ends, path, self._renew, workspace=workspace, timeout=timeout, changed=changed
        )
        self._cells.past.replace(cells)
        self._checkpoints.rewrite()
        self._checkpoints.begin()
        return self.loaded

    async def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the cells and their output as a notebook for Jupyter, or as a script.

        Args:
            path: The file, which is replaced if it exists: ``.ipynb`` for a notebook, ``.py`` for a script without outputs.

        Returns:
            The file's path.

        Raises:
            InvalidInputError: The path is not valid, or has another extension.
            StoreError: It cannot be written. An existing file is unchanged.
        """
        from cellblock.host import notebook  # as above

        return await notebook.export(path, self.history())

    def history(self, count: int | None = None) -> list[HistoryEntry]:
        """Return the cells that this session ran, oldest first, across resets, with those results that are still kept.

        Args:
            count: How many of the last ones; by default all that are kept (1,000).
        """
        entries = self._cells.past.entries
        return entries if count is None else entries[max(len(entries) - count, 0) :]

    @functools.cached_property
    def files(self) -> Files:
        """The files of the session's working directory, for the caller, with the rights of the session."""
        from cellblock.host.files import Files

        return Files(Path(self._cwd), walls=self._walls, on_change=self._checkpoints.automatic.files_changed)

    async def _renew(self) -> None:
        if self.next_count > 1 or self._cells.past.entries:
            await self.reset()

    @property
    def _ends(self) -> Ends:
        from cellblock.host.saving import Ends

        return Ends(self._cells.run_silently, self._cells.run_and_take, self._room, self._cwd, self.files)

    @property
    def _room(self) -> int:
        return min(self.wanted.limits.media, self.wanted.limits.values)
