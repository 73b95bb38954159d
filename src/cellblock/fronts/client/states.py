"""The methods of both clients for the state of a session: checkpoints, variables, saved sessions."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cellblock.fronts.client import calls
from cellblock.fronts.client.calls import Call
from cellblock.fronts.client.transport import async_pieces, opened, pieces
from cellblock.model.sessions import SessionRecord

if TYPE_CHECKING:
    from cellblock.model.checkpoints import Changes, CheckpointRecord, FilesMode, StateChanges, Undone
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable

T = TypeVar("T")


class States:
    """What a `Client` does with the state of a session."""

    @abstractmethod
    def _send(self, call: Call[T]) -> T:
        """Make a call, and return what is answered."""

    @abstractmethod
    def _upload(self, method: str, path: str, content: bytes | Iterable[bytes], query: Mapping[str, str] | None = None) -> Any:
        """Send bytes, and return the JSON that is answered."""

    @abstractmethod
    def _receive(self, method: str, path: str, local: str | os.PathLike[str], query: Mapping[str, str] | None = None) -> None:
        """Write what the gateway sends to a file."""

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint(self, kernel: SessionRecord | str, name: str = "", *, files: FilesMode = "shared") -> CheckpointRecord:
        """Keep the state that a session has now, as `cellblock.checkpoint`."""
        return self._send(calls.make_checkpoint(kernel, name, files))

    def checkpoints(self, kernel: SessionRecord | str) -> list[CheckpointRecord]:
        """Return the checkpoints of a session, oldest first."""
        return self._send(calls.checkpoints(kernel))

    def restore(self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> Changes:
        """Go back to a checkpoint of a session; return which files have changed, if the checkpoint holds any."""
        return self._send(calls.restore(kernel, checkpoint))

    def drop_checkpoint(self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> None:
        """Drop a checkpoint of a session, and free its memory."""
        self._send(calls.drop_checkpoint(kernel, checkpoint))

    def undo(self, kernel: SessionRecord | str, count: int = 1, *, partial: bool = False) -> Undone:
        """Go back over the last cells of a session."""
        return self._send(calls.undo(kernel, count, partial))

    def diff(self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> StateChanges:
        """Return what has changed in a session since a checkpoint."""
        return self._send(calls.diff(kernel, checkpoint))

    def fork(
        self,
        kernel: SessionRecord | str,
        names: Sequence[str],
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
    ) -> list[SessionRecord]:
        """Make sessions of these names that begin with the state that a session has now; see `Session.fork`."""
        return self._send(calls.fork(kernel, names, files, seeds, same_random_state))

    def adopt(self, kernel: SessionRecord | str, branch: SessionRecord | str) -> Changes:
        """Go on with the state of another session, mostly a branch, which is ended by that; return which files changed."""
        return self._send(calls.adopt(kernel, branch))

    # -- files of a whole session --------------------------------------------------------------------------------------

    def variables(self, kernel: SessionRecord | str) -> list[Variable]:
        """Return the variables of a session: type, size, shape, and a short text of each."""
        return self._send(calls.variables(kernel))

    def save(self, kernel: SessionRecord | str, local: str | os.PathLike[str], *, workspace: bool = False) -> SaveReport:
        """Save a session to this machine's disk; return what was saved, and what could not be."""
        self._receive("POST", calls.saved(kernel), local, calls.files(workspace))
        return calls.save_report(local)

    def load(self, kernel: SessionRecord | str, local: str | os.PathLike[str], *, workspace: bool = False) -> LoadReport:
        """Continue a saved session of this machine's disk in a session, which gets a fresh kernel."""
        with opened(local) as file:
            return calls.load_report(self._upload("POST", calls.loaded(kernel), pieces(file), calls.files(workspace)))

    def export(self, kernel: SessionRecord | str, local: str | os.PathLike[str]) -> None:
        """Write the cells of a session to this machine's disk: ``.ipynb`` for a notebook, ``.py`` for a script."""
        self._receive("GET", calls.exported(kernel, local), local)


class AsyncStates:
    """What an `AsyncClient` does with the state of a session."""

    @abstractmethod
    async def _send(self, call: Call[T]) -> T:
        """Make a call, and return what is answered."""

    @abstractmethod
    async def _upload(
        self, method: str, path: str, content: bytes | AsyncIterable[bytes], query: Mapping[str, str] | None = None
    ) -> Any:
        """Send bytes, and return the JSON that is answered."""

    @abstractmethod
    async def _receive(
        self, method: str, path: str, local: str | os.PathLike[str], query: Mapping[str, str] | None = None
    ) -> None:
        """Write what the gateway sends to a file."""

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    async def checkpoint(
        self, kernel: SessionRecord | str, name: str = "", *, files: FilesMode = "shared"
    ) -> CheckpointRecord:
        """Keep the state that a session has now, as `cellblock.checkpoint`."""
        return await self._send(calls.make_checkpoint(kernel, name, files))

    async def checkpoints(self, kernel: SessionRecord | str) -> list[CheckpointRecord]:
        """Return the checkpoints of a session, oldest first."""
        return await self._send(calls.checkpoints(kernel))

    async def restore(self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> Changes:
        """Go back to a checkpoint of a session; return which files have changed, if the checkpoint holds any."""
        return await self._send(calls.restore(kernel, checkpoint))

    async def drop_checkpoint(self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> None:
        """Drop a checkpoint of a session, and free its memory."""
        await self._send(calls.drop_checkpoint(kernel, checkpoint))

    async def undo(self, kernel: SessionRecord | str, count: int = 1, *, partial: bool = False) -> Undone:
        """Go back over the last cells of a session."""
        return await self._send(calls.undo(kernel, count, partial))

    async def diff(self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> StateChanges:
        """Return what has changed in a session since a checkpoint."""
        return await self._send(calls.diff(kernel, checkpoint))

    async def fork(
        self,
        kernel: SessionRecord | str,
        names: Sequence[str],
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
    ) -> list[SessionRecord]:
        """Make sessions of these names that begin with the state that a session has now; see `Session.fork`."""
        return await self._send(calls.fork(kernel, names, files, seeds, same_random_state))

    async def adopt(self, kernel: SessionRecord | str, branch: SessionRecord | str) -> Changes:
        """Go on with the state of another session, mostly a branch, which is ended by that; return which files changed."""
        return await self._send(calls.adopt(kernel, branch))

    # -- files of a whole session --------------------------------------------------------------------------------------

    async def variables(self, kernel: SessionRecord | str) -> list[Variable]:
        """Return the variables of a session: type, size, shape, and a short text of each."""
        return await self._send(calls.variables(kernel))

    async def save(self, kernel: SessionRecord | str, local: str | os.PathLike[str], *, workspace: bool = False) -> SaveReport:
        """Save a session to this machine's disk; return what was saved, and what could not be."""
        await self._receive("POST", calls.saved(kernel), local, calls.files(workspace))
        return calls.save_report(local)

    async def load(self, kernel: SessionRecord | str, local: str | os.PathLike[str], *, workspace: bool = False) -> LoadReport:
        """Continue a saved session of this machine's disk in a session, which gets a fresh kernel."""
        with opened(local) as file:
            answer = await self._upload("POST", calls.loaded(kernel), async_pieces(file), calls.files(workspace))
        return calls.load_report(answer)

    async def export(self, kernel: SessionRecord | str, local: str | os.PathLike[str]) -> None:
        """Write the cells of a session to this machine's disk: ``.ipynb`` for a notebook, ``.py`` for a script."""
        await self._receive("GET", calls.exported(kernel, local), local)
