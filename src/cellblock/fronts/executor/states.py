"""The methods of `CodeExecutor` for the state of its session: variables, saved sessions, checkpoints."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock.host.checks import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.model.checkpoints import Changes, FilesMode, StateChanges, Undone
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable


class WithStates:
    """What a `CodeExecutor` passes on to its session."""

    @property
    @abstractmethod
    def session(self) -> Session:
        """The session."""

    async def put(self, name: str, value: object) -> None:
        """Give a variable of the kernel a value, as `Session.put` does."""
        await self.session.put(name, value)

    async def get(self, name: str, *, unpickle: bool = False) -> Any:
        """Return the value of a variable of the kernel, as `Session.get` does."""
        return await self.session.get(name, unpickle=unpickle)

    async def variables(self) -> list[Variable]:
        """Return the variables of the kernel, as `Session.variables` does."""
        return await self.session.variables()

    async def save(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> SaveReport:
        """Save the kernel's state to a file, as `Session.save` does."""
        return await self.session.save(path, workspace=workspace, timeout=timeout)

    async def load(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> LoadReport:
        """Continue what was saved to a file, in a fresh kernel, as `Session.load` does."""
        return await self.session.load(path, workspace=workspace, timeout=timeout)

    async def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the cells and what they showed as a notebook or a script, as `Session.export` does."""
        return await self.session.export(path)

    async def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> Checkpoint:
        """Keep the state that the kernel has now, as `Session.checkpoint` does."""
        return await self.session.checkpoint(name, files=files)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints, oldest first, as `Session.checkpoints` does."""
        return self.session.checkpoints()

    async def restore(self, checkpoint: Checkpoint | str) -> Changes:
        """Go back to a checkpoint, or to that of a name, as `Session.restore` does."""
        return await self.session.restore(checkpoint)

    async def undo(self, count: int = 1, *, partial: bool = False) -> Undone:
        """Go back over the last cells, as `Session.undo` does."""
        return await self.session.undo(count, partial=partial)

    async def diff(self, checkpoint: Checkpoint | str) -> StateChanges:
        """Return what has changed since a checkpoint, or that of a name, as `Session.diff` does."""
        return await self.session.diff(checkpoint)
