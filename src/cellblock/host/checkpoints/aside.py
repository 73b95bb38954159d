"""Saves the last state of a session while its cells continue: from the checkpoint of that state, not from its kernel."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cellblock.errors import CheckpointError, SnapshotError
from cellblock.host import saving
from cellblock.host.files.steps import in_thread
from cellblock.model.saving import LeftOut, SaveReport

if TYPE_CHECKING:
    import os

    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.cell import OnInput
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.snapshots import Snapshot
    from cellblock.model import CodeExecutionResult


class LastState(NamedTuple):
    """The last state of a session that no cell is changing.

    Attributes:
        number: The number of the state; 0 for that of a fresh kernel.
        running: The tag of the cell that has begun in it; empty if none has.
        busy: Whether something runs in the session.
    """

    number: int
    running: str
    busy: bool


def last_state(cells: Cells, checkpoints: Checkpoints) -> LastState:
    """Return the last state of a session."""
    current = cells.current
    number = cells.past.state if current is None else cells.past.before
    running = "" if current is None else current.tag
    return LastState(0 if number == checkpoints.fresh_state else number, running, cells.busy)


async def save(
    cells: Cells, checkpoints: Checkpoints, ends: saving.Ends, state: int, path: str | os.PathLike[str], timeout: float
) -> SaveReport:
    """Save a state, with the files that were kept for it.

    Args:
        cells: The session's cells.
        checkpoints: Its checkpoints.
        ends: As for `saving.save`.
        state: The state's number.
        path: The file.
        timeout: Time limit for pickling, in seconds.

    Raises:
        CheckpointError: There is no checkpoint of that state, or no memory for another kernel.
        CellblockError: As for `Session.save`.
    """
    await checkpoints.automatic.made()
    if checkpoints.crowded:
        raise CheckpointError("another kernel of the session could be over its limit of memory: Resources(memory=…)")
    checkpoint = next((one for one in reversed(checkpoints.all()) if one.automatic and one.moment.state == state), None)
    if checkpoint is None:
        raise CheckpointError("there is no checkpoint of that state")
    past, why = [cell.entry for cell in checkpoint.moment.past], checkpoint.without_files
    files = None if checkpoint.snapshot is None else checkpoints.files.hold(checkpoint.snapshot)
    try:
        kernel = await checkpoints.resuming.look_at(checkpoint)
        try:

            async def run(code: str, on_input: OnInput | None) -> CodeExecutionResult:
                return await cells.run_elsewhere(kernel, code, on_input)

            async def take(
                code: str, on_input: OnInput | None, take: Callable[[bytes], Awaitable[None]], timeout: float | None
            ) -> CodeExecutionResult:
                return await cells.take_elsewhere(kernel, code, on_input, take, timeout)

            aside = replace(ends, run=run, run_and_take=take)
            archive = None if files is None else lambda left_out: _pieces(checkpoints, files, left_out)
            report = await saving.save(aside, path, past, workspace=False, timeout=timeout, archive=archive)
        finally:
            await kernel.close()
    finally:
        if files is not None:
            checkpoints.files.drop(files)
    return report if files is not None else replace(report, left_out=[*report.left_out, LeftOut("the files", why)])


async def _pieces(checkpoints: Checkpoints, files: Snapshot, left_out: list[LeftOut]) -> AsyncGenerator[bytes, None]:
    found: list[tuple[str, str]] = []
    pieces = checkpoints.files.pack(files, found)
    try:
        while (piece := await in_thread(next, pieces, None)) is not None:
            yield piece
    except OSError as error:
        raise SnapshotError(f"the files of the session cannot be saved: {error.strerror}") from error
    left_out += [LeftOut(path, reason) for path, reason in found]
