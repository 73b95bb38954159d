"""Saves a session's state to a file, and loads it.

The session's code makes the pickles, and the loading session's code reads them. Here they are opaque bytes.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import importlib.util
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellblock.errors import CheckpointError, InvalidInputError, ProtocolError, SnapshotError, StoreError
from cellblock.host.checkpoints.checkpoint import stopped
from cellblock.host.checks import DEFAULT_TIMEOUT
from cellblock.host.exchange import Run, sent
from cellblock.host.files.steps import in_thread
from cellblock.host.new_file import UnnamedFile
from cellblock.host.remote_file import RemoteFile, as_path
from cellblock.host.saved_file import CLONE, PIECE, VARIABLES, WORKSPACE, LoadedFile, SavedFile
from cellblock.host.snapshots import Missing
from cellblock.model import HistoryEntry
from cellblock.model.saving import LeftOut, LoadReport, SaveReport
from cellblock.walls.sandbox.paths import is_inside
from cellblock.wire.saved import DATA, END, Loaded, State, read, write

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.checkpoints.workspace_snapshots import Then
    from cellblock.host.clones.clone import Clone
    from cellblock.host.files import Files
    from cellblock.host.kernels.cell import OnInput
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.launch.session_listeners import SessionListeners
    from cellblock.host.snapshots import Snapshot
    from cellblock.model import CodeExecutionResult

_ROOM = 4096  # for the other parts of a message
_LOADS = "The session loads a saved one."
_PICKLING = "__import__('cellblock.worker.pickling', fromlist=['x'])"
_SAVE = "__import__('cellblock.worker.values.saved_values', fromlist=['x']).save"
_LOAD = "__import__('cellblock.worker.values.loading', fromlist=['x']).load"

Take = Callable[[bytes], Awaitable[None]]
Archive = Callable[[list[LeftOut]], "AsyncGenerator[bytes, None]"]


@dataclass(frozen=True)
class Ends:
    """The parts of a session for save and load.

    Attributes:
        run: Runs a silent cell.
        run_and_take: Runs a silent cell, and passes on each value that it sends.
        room: Maximum size of a value in bytes.
        workspace: Working directory.
        shown: The path of the working directory in the session.
        files: Files of the working directory.
    """

    run: Run
    run_and_take: Callable[[str, OnInput | None, Take, float | None], Awaitable[CodeExecutionResult]]
    room: int
    workspace: str
    shown: str
    files: Files


class LastState(NamedTuple):
    """The last state of a session that no cell is changing.

    Attributes:
        number: The number of the state; 0 for a fresh kernel's.
        running: The tag of the cell that began in it; empty if none has.
        busy: Whether something runs in the session.
    """

    number: int
    running: str
    busy: bool


class Saving:
    """Saves one session, and loads others into it.

    Attributes:
        loaded: The report of the last loaded session, if any.
    """

    def __init__(
        self,
        cells: Cells,
        kernels: KernelSlot,
        checkpoints: Checkpoints,
        files: Files,
        workspace: str,
        room: int,
        launch: Callable[[], Awaitable[Kernel]],
        clone: Clone | None,
        listeners: SessionListeners,
    ) -> None:
        """Store the arguments.

        Args:
            cells: The session's cells.
            kernels: Its kernels.
            checkpoints: Its checkpoints.
            files: The files of its workspace.
            workspace: Its working directory.
            room: Maximum size of a value in bytes.
            launch: Starts a fresh kernel, which is not the session's yet.
            clone: The clone that it works in, if it does.
            listeners: The listeners of its sandboxes.
        """
        self._cells = cells
        self._kernels = kernels
        self._launch = launch
        self._checkpoints = checkpoints
        self._clone = clone
        self._listeners = listeners
        shown = workspace if clone is None else clone.shown
        self._ends = Ends(cells.run_silently, cells.run_and_take, room, workspace, shown, files)
        self.loaded: LoadReport | None = None

    async def save(self, path: str | os.PathLike[str], *, workspace: bool, timeout: float | None) -> SaveReport:
        present, path = self._cells.past.present, as_path(path)
        archive: Archive | None = None
        base = ""
        if workspace:
            archive = functools.partial(_files, self._ends.files)
        if workspace and self._clone is not None:
            archive, base = self._files_of_clone, await self._clone.base()
        if (remote := RemoteFile.at(path)) is None:
            return await _save(self._ends, SavedFile(path), present, timeout=timeout, archive=archive, base=base)
        await remote.prepare()
        file = SavedFile(UnnamedFile())
        return await _save(self._ends, file, present, timeout=timeout, archive=archive, base=base, remote=remote)

    async def _files_of_clone(self, left_out: list[LeftOut]) -> AsyncGenerator[bytes, None]:
        """Yield the current files of the clone as a tar stream."""
        async with self._cells.turn():
            files = await self._checkpoints.files.take()
        try:
            async with aclosing(self._pieces(files, left_out)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._checkpoints.files.drop(files)

    @property
    def last_state(self) -> LastState:
        """The last state that no cell is changing."""
        current, past = self._cells.current, self._cells.past
        number = past.state if current is None else past.before
        running = "" if current is None else current.tag
        return LastState(0 if number == past.fresh else number, running, self._cells.busy)

    async def save_aside(self, state: int, path: str | os.PathLike[str], *, timeout: float = DEFAULT_TIMEOUT) -> SaveReport:
        """Save a state with an automatic checkpoint and its files from a temporary kernel, while cells continue.

        Args:
            state: The state's number (`last_state`).
            path: As for `Session.save`.
            timeout: As for `Session.save`.

        Raises:
            CheckpointError: The state has no checkpoint.
            CellblockError: As for `Session.save`.
        """
        checkpoints = self._checkpoints
        await checkpoints.automatic.made()
        if checkpoints.crowded:
            raise CheckpointError("a second kernel of the session could exceed its memory limit: raise the limit with memory=")
        checkpoint = next((one for one in reversed(checkpoints.all()) if one.automatic and one.moment.state == state), None)
        if checkpoint is None:
            raise CheckpointError("there is no checkpoint of that state")
        past, why = [cell.entry for cell in checkpoint.moment.past], checkpoint.without_files
        if self._clone is not None and checkpoint.snapshot is None:
            raise CheckpointError(f"the checkpoint has no files: {why}")
        files = None if checkpoint.snapshot is None else checkpoints.files.hold(checkpoint.snapshot)
        try:
            kernel = await checkpoints.resuming.look_at(checkpoint)
            try:
                archive = None if files is None else functools.partial(self._pieces, files)
                base = "" if self._clone is None else await self._clone.base()
                file = SavedFile(path)
                report = await _save(self._ends_of(kernel), file, past, timeout=timeout, archive=archive, base=base)
            finally:
                await kernel.discard()  # its exit handlers and buffered text belong to the session
        finally:
            if files is not None:
                checkpoints.files.drop(files)
        return report if files is not None else replace(report, left_out=[*report.left_out, LeftOut("the files", why)])

    def _ends_of(self, kernel: Kernel) -> Ends:
        """Return the session's parts with another kernel."""
        return replace(
            self._ends,
            run=functools.partial(self._cells.run_elsewhere, kernel),
            run_and_take=functools.partial(self._cells.take_elsewhere, kernel),
        )

    async def _pieces(self, files: Snapshot, left_out: list[LeftOut]) -> AsyncGenerator[bytes, None]:
        """Yield a snapshot as a tar stream. The files of a clone get all objects that they refer to."""
        found: list[tuple[str, str]] = []
        pieces = _in_pieces(self._checkpoints.files.pack(files, found))
        if self._clone is not None:
            pieces = self._clone.whole(pieces)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except OSError as error:
            raise SnapshotError(f"the files of the session cannot be saved: {error.strerror}") from error
        left_out += [LeftOut(path, reason) for path, reason in found]

    async def load(self, path: str | os.PathLike[str], *, workspace: bool, timeout: float | None) -> LoadReport:
        return await self._load(path, workspace=workspace, timeout=timeout)

    async def load_missing(
        self, path: str | os.PathLike[str], *, workspace: bool = True, timeout: float | None = DEFAULT_TIMEOUT
    ) -> list[str]:
        """Continue a saved session like `load`, but restore only missing files, and in the session's own, fresh kernel.

        Args:
            path: As for `Session.load`.
            workspace: Whether to restore the saved files, if any.
            timeout: As for `Session.load`.

        Returns:
            Existing files that differ from the saved ones.

        Raises:
            CellblockError: As for `Session.load`.
        """
        changed: list[str] = []
        await self._load(path, workspace=workspace, timeout=timeout, changed=changed)
        return changed

    async def _load(
        self, path: str | os.PathLike[str], *, workspace: bool, timeout: float | None, changed: list[str] | None = None
    ) -> LoadReport:
        path = as_path(path)
        async with AsyncExitStack() as stack:
            name = ""
            if (remote := RemoteFile.at(path)) is not None:
                path, name = await stack.enter_async_context(remote.read()), remote.url
            file = LoadedFile(path, name)
            stack.push_async_callback(in_thread, file.close)
            await in_thread(file.open)
            if changed is not None:
                workspace = workspace and file.has_workspace
            elif workspace and not file.has_workspace:
                raise InvalidInputError(f"{file.name} has no files: the session was saved without its workspace")
            clone = self._clone if workspace else None
            if workspace and bool(file.base) != (clone is not None):
                where = "a session in a clone (workspace='clone')" if file.base else "a session without workspace='clone'"
                raise InvalidInputError(f"the files in {file.name} can be loaded into {where} only")
            if changed is None:
                self.loaded = await self._replace(file, workspace=workspace, timeout=timeout)
                return self.loaded
            if clone is None:
                await self._renew()
            else:
                workspace = await self._load_unused(clone, file)
            self.loaded = await _load(
                self._ends, file, workspace=workspace, timeout=timeout, changed=changed, unpack=clone is None
            )
        self._cells.past.replace(file.cells)
        self._checkpoints.begin_with_line()
        self._checkpoints.begin()
        return self.loaded

    async def _load_unused(self, clone: Clone, file: LoadedFile) -> bool:
        """Replace the files of the session's clone, unless it was used. Return whether they were replaced."""
        if not clone.unused:
            await self._renew()
            return False
        await clone.load(_in_pieces(file.workspace()), file.base, self._renew, None)
        self._checkpoints.automatic.files_changed()
        return True

    async def _replace(self, file: LoadedFile, *, workspace: bool, timeout: float | None) -> LoadReport:
        """Replace the session's state and files by a saved session: all or nothing."""
        checkpoints, skipped = self._checkpoints, list[LeftOut]()
        report = LoadReport()

        async def load() -> None:
            nonlocal report
            report = await self._load_beside(file, timeout)

        try:
            async with self._cells.turn(stop=_LOADS):
                if not self._loads_in_place:
                    checkpoints.check_second_kernel()
                if not workspace:
                    await load()
                    return report
                async with stopped(None if self._loads_in_place else self._kernels.current):
                    await self._with_files(file, load, skipped)
                checkpoints.automatic.files_changed()
                return replace(report, left_out=[*report.left_out, *skipped], files=True)
        finally:
            checkpoints.automatic.turn_ended()

    async def _with_files(self, file: LoadedFile, load: Then, skipped: list[LeftOut]) -> None:
        """Bring the files of a saved session into the workspace, then load its variables: both or neither."""
        clone, files, pieces = self._clone, self._checkpoints.files, _in_pieces(file.workspace())
        if clone is not None:
            await clone.load(pieces, file.base, load, None if clone.unused else files.keeping("load").take)
            return
        async with self._ends.files.unpacked(pieces) as (folder, unpacked):
            skipped += [LeftOut(one.path, one.reason) for one in unpacked.skipped]
            await files.unpack(folder, load, self._cells.past.kernel)

    @property
    def _loads_in_place(self) -> bool:
        """Whether a load needs no second kernel: the session's own is fresh, and no later host can find it half loaded."""
        return self._checkpoints.fresh and not self._checkpoints.lasting

    async def _load_beside(self, file: LoadedFile, timeout: float | None) -> LoadReport:
        """Load the variables into a second kernel, which replaces the session's own when it is complete."""
        in_place = self._loads_in_place
        kernel = await (self._kernels.live() if in_place else self._launch())

        async def loaded() -> Kernel:
            return kernel

        try:
            report = await _load(self._ends_of(kernel), file, workspace=False, timeout=timeout)
            if in_place:
                self._checkpoints.begin_loaded(kernel, file.cells)
            else:
                await self._kernels.swap(loaded, functools.partial(self._checkpoints.begin_loaded, kernel, file.cells))
        except BaseException:  # includes cancellation: nothing else owns the kernel
            if in_place:
                await self._kernels.renew(force=True)
            elif self._kernels.current is not kernel:
                self._listeners.settle()
                await kernel.discard()
            raise
        return report

    async def _renew(self) -> None:
        if self._cells.count > 0 or self._cells.past.entries:
            await self._cells.reset()


async def _save(
    ends: Ends,
    file: SavedFile,
    cells: Iterable[HistoryEntry],
    *,
    timeout: float | None,
    archive: Archive | None = None,
    base: str = "",
    remote: RemoteFile | None = None,
) -> SaveReport:
    """Save the state of a kernel.

    Args:
        ends: The session.
        file: The file, which is closed at the end.
        cells: Its cells.
        timeout: Time limit for pickling, in seconds.
        archive: Yields a tar stream of the files to save, and adds omitted files to its argument.
        base: The commit that the session's clone began with, if the files are a clone.
        remote: The destination of the complete file.
    """
    if remote is None and archive is not None:
        _check_outside(file.file.path, ends.workspace)
    try:
        await in_thread(file.open)
        await _provide_cloudpickle(ends.run)
        await in_thread(file.begin, VARIABLES)
        state = await _take_state(ends, file, timeout)
        left_out = [*state.left_out]
        if archive is not None:
            await in_thread(file.begin, WORKSPACE)
            async with aclosing(archive(left_out)) as stream:
                async for data in stream:
                    await in_thread(file.write, data)
        if base:
            await in_thread(file.begin, CLONE)
            await in_thread(file.write, base.encode())
        kept = [*cells]
        state = replace(state, left_out=tuple(left_out), directory=_relative(state.directory, ends.shown))
        await in_thread(file.finish, state, kept)
        path: Path | str = file.file.path
        if remote is not None:
            await remote.write(file.file.path)
            path = remote.url
    finally:
        await in_thread(file.close)
    return SaveReport(path, file.file.size, state.names, left_out, len(kept), archive is not None)


def _check_outside(path: Path, workspace: str) -> None:
    if is_inside(os.path.realpath(path.parent), workspace):
        raise InvalidInputError(f"{path} is in the workspace, which cannot be saved into itself: save to another directory")


def _relative(directory: str, workspace: str) -> str:
    """Return a directory inside the workspace as a relative path: another session's workspace may be elsewhere."""
    return os.path.relpath(directory, workspace) if is_inside(directory, workspace) else directory


def _absolute(directory: str, workspace: str) -> str:
    return os.path.normpath(os.path.join(workspace, directory)) if directory else ""


async def _take_state(ends: Ends, file: SavedFile, timeout: float | None) -> State:
    size, state = 0, None

    async def take(message: bytes) -> None:
        nonlocal size, state
        if state is not None:
            raise ProtocolError("the session sent data after its state")
        if message.startswith(DATA):
            size += len(message) - len(DATA)
            await in_thread(file.write, message[len(DATA) :])
        elif message.startswith(END):
            state = await in_thread(read, State, message[len(END) :])

    piece = min(ends.room - _ROOM, PIECE)
    if piece <= 0:
        raise InvalidInputError(f"a session whose values may have {ends.room:,} bytes cannot be saved: raise Limits(media=…)")
    sent(await ends.run_and_take(f"{_SAVE}({piece})", None, take, timeout), "the session was not saved")
    return _complete(state, size)


def _complete(state: State | None, size: int) -> State:
    """Return the state after checking that the session sent all of its pickles, `size` bytes."""
    if state is None or any(group.size < 0 for group in state.groups) or sum(group.size for group in state.groups) != size:
        raise ProtocolError("the session did not send all of its state")
    return state


def _files(files: Files, left_out: list[LeftOut]) -> AsyncGenerator[bytes, None]:
    return files.tar(on_skip=lambda skipped: left_out.append(LeftOut(skipped.path, skipped.reason)))


async def _load(
    ends: Ends,
    file: LoadedFile,
    *,
    workspace: bool,
    timeout: float | None,
    changed: list[str] | None = None,
    unpack: bool = True,
) -> LoadReport:
    """Load a saved session into a kernel.

    Args:
        ends: The session, with that kernel.
        file: The open file.
        workspace: Whether to unpack the workspace files.
        timeout: Time limit for reading the pickles, in seconds.
        changed: If given, existing files are unchanged, and this collects those that differ from the saved ones.
        unpack: Whether these files are not in the workspace yet.
    """
    skipped: list[LeftOut] = []
    if workspace and unpack:
        pieces = file.workspace()
        if changed is not None:
            missing = Missing(pieces, ends.workspace)
            pieces = missing.pieces()
        unpacked = await ends.files.untar(_in_pieces(pieces))
        if changed is not None:
            changed += missing.changed
        skipped = [LeftOut(one.path, one.reason) for one in unpacked.skipped]
    await _provide_cloudpickle(ends.run)
    loaded = await _give_state(ends, file, timeout)
    left_out = [*file.manifest.state.left_out, *loaded.left_out, *skipped]
    return LoadReport([*loaded.names], left_out, len(file.cells), workspace)


async def _give_state(ends: Ends, file: LoadedFile, timeout: float | None) -> Loaded:
    prepared = await in_thread(_lines, file, ends.shown)
    lines = iter(prepared)
    pieces = file.variables()
    failure: BaseException | None = None

    async def next_line(_prompt: str) -> str | None:
        nonlocal failure
        if (line := next(lines, None)) is not None:
            return line
        try:
            piece = await in_thread(next, pieces, None)
        except (InvalidInputError, StoreError) as error:
            failure = error
            return None
        return None if piece is None else await in_thread(_encoded, piece)

    answer: list[bytes] = []

    async def take(message: bytes) -> None:
        answer[:] = [message]

    result = await ends.run_and_take(f"{_LOAD}({len(prepared) - 1})", next_line, take, timeout)
    if failure is not None:
        raise failure
    sent(result, "the session was not loaded")
    if not answer:
        raise ProtocolError("the session did not report the loaded state")
    return await in_thread(read, Loaded, answer[0])


def _lines(file: LoadedFile, workspace: str) -> list[str]:
    """Return the lines that precede the pickles: the session's state, and the code of its cells."""
    state = file.manifest.state
    told = replace(state, left_out=(), directory=_absolute(state.directory, workspace))
    return [write(told).decode(), *(json.dumps(batch) for batch in _batches(file.cells))]


def _encoded(piece: bytes) -> str:
    return base64.b64encode(piece).decode()


def _batches(cells: list[HistoryEntry]) -> Iterator[list[tuple[int | None, str]]]:
    """Yield the numbers and the code of cells, in batches that fit into one message."""
    batch: list[tuple[int | None, str]] = []
    size = 0
    for cell in cells:
        size += 12 * len(cell.code) + 100  # in JSON, a character takes up to 12 bytes
        if size > PIECE and batch:
            yield batch
            batch, size = [], 0
        batch.append((cell.execution_count, cell.code))
    if batch:
        yield batch


async def _in_pieces(pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    while (piece := await in_thread(next, pieces, None)) is not None:
        yield piece


async def _provide_cloudpickle(run: Run) -> None:
    """Make cloudpickle importable in the session's interpreter: its own, or a copy of this program's."""

    async def give(_prompt: str) -> str:
        return await asyncio.to_thread(_source_of_cloudpickle)

    sent(await run(f"{_PICKLING}.provide_cloudpickle()", give), "the session cannot be saved or loaded")


def _source_of_cloudpickle() -> str:
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        raise InvalidInputError("saving and loading need cloudpickle, which is not installed: pip install cloudpickle")
    return Path(spec.origin).with_name("cloudpickle.py").read_text(encoding="utf-8")
