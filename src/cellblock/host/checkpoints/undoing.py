"""Undo and redo: plans which checkpoint and which files to restore, or why it is impossible, and does it."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cellblock.errors import CheckpointError, InvalidInputError, SnapshotError, shown
from cellblock.host.checkpoints.checkpoint import stopped
from cellblock.host.checkpoints.checkpoints import GOES_BACK, Before, Checkpoints
from cellblock.host.kernels.pairs import Pair
from cellblock.host.snapshots.trash import Reason
from cellblock.host.snapshots.undo import Interval
from cellblock.model.checkpoints import Undone

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.workspace_snapshots import Bring
    from cellblock.host.kernels.state_events import Numbered
    from cellblock.host.snapshots.snapshots import Reverted
    from cellblock.model import HistoryEntry

_FEW = 3
"""Maximum number of counts in a message."""


class Way(NamedTuple):
    """The plan of an undo.

    Attributes:
        checkpoint: The checkpoint to restore; None for the fresh kernel before all cells.
        intervals: File changes of the cells; None to leave files unchanged.
        left: Why files are left unchanged; empty if they are restored.
        since: When the first of the cells began (`time.monotonic`).
    """

    checkpoint: Checkpoint | None
    intervals: Sequence[Interval] | None
    left: str
    since: float


async def undo(states: Checkpoints, count: int, *, partial: bool, before: Before | None) -> Undone:
    """Implement `Session.undo`. `before` is called once the undo is certain."""
    if type(count) is not int or count < 1:
        raise InvalidInputError(f"the number of cells to undo must be at least 1, not {shown(count)}")
    async with states.cells.turn(stop=GOES_BACK):
        try:
            return await _undo(states, states.past.line, count, partial, before)
        finally:
            states.automatic.turn_ended()  # with files that may have been left unchanged


async def _undo(states: Checkpoints, line: Sequence[Numbered], count: int, partial: bool, before: Before | None) -> Undone:
    way = await _find_way(states, line, count, partial=partial)
    if before is not None:
        await before()
    redo = states.prepare_redo(way.checkpoint, await states.automatic.copy_present())
    try:
        reverted, left = await _go_back(states, way, line, partial=partial)
    except BaseException:  # includes cancellation: the session is unchanged, unless its kernel is fresh
        states.forget_redo(redo)
        raise
    states.automatic.forget_files()  # a new snapshot includes the files that were left unchanged
    kept = {cell.number for cell in states.past.line}
    cells = [cell.entry for cell in line if cell.number not in kept]
    if redo is not None:
        states.keep_redo(redo, reverted)
    return _undone(states, cells, reverted, left, states.outside(way.since))


async def _go_back(states: Checkpoints, way: Way, line: Sequence[Numbered], *, partial: bool) -> tuple[Reverted | None, str]:
    """Undo. Return what was done to files, and why some were left unchanged."""

    async def restore(files: Bring[Reverted] | None) -> Reverted | None:
        if way.checkpoint is None:
            return await states.restore_fresh(files)
        return await states.go_to(way.checkpoint, "undo", files)

    if not way.intervals:
        return await restore(None), way.left
    why = Reason("undo", line[-1].entry.execution_count or 0)
    try:
        return await restore(functools.partial(states.files.undo, way.intervals, why=why, partial=partial)), way.left
    except SnapshotError as error:  # for example, the disk is full
        if not partial:
            raise
        return await restore(None), str(error)


def _undone(
    states: Checkpoints, cells: list[HistoryEntry], reverted: Reverted | None, left: str, outside: list[str]
) -> Undone:
    stays = [left or ("" if reverted is None else reverted.left)]
    stays.append("" if reverted is None else _what_stays(reverted.later))
    actions, trash = [], ""
    if reverted is not None:
        actions, trash = reverted.actions, reverted.entry.id if reverted.entry.taken else ""
    return Undone(cells, states.kernels.count, actions, ". ".join(filter(None, stays)), outside, trash, len(states.redos))


async def finish_undo(states: Checkpoints, checkpoint: Checkpoint | None) -> None:
    """Finish an undo that an earlier host began and that may have restored some files."""
    state = states.past.fresh if checkpoint is None else checkpoint.moment.state
    # Tasks run since this host continued their kernel. Their changes until they are stopped are theirs.
    async with stopped(states.kernels.current):
        intervals, left = await _intervals_of(states, states.past.pairs.after(state))
        await _go_back(states, Way(checkpoint, intervals, left, 0.0), states.past.line, partial=True)


async def redo(states: Checkpoints) -> Undone:
    """Revert the last undo: variables, files, directory, environment and random state are as before it.

    Redo works until the next cell begins. External changes of files since the undo are kept.

    Returns:
        The cells that count again, and what was done to files.

    Raises:
        CheckpointError: There is no undo to revert.
        SnapshotError: The files cannot be restored. Nothing was changed.
        StateError, LaunchError: As for `undo`.
    """
    async with states.cells.turn():
        redo = states.last_redo()
        before = {cell.number for cell in states.past.line}
        files = None if redo.files is None else functools.partial(states.files.redo, *redo.files, why=Reason("redo"))
        reverted = await states.go_to_undone(redo, files)
        states.automatic.forget_files()
        cells = [cell.entry for cell in states.past.line if cell.number not in before]
        return _undone(states, cells, reverted, "", [])


async def finish_redo(states: Checkpoints, checkpoint: Checkpoint, since: int) -> None:
    """Finish a redo that an earlier host began after the undo to a state, and that may have restored some files."""
    undone = states.past.pairs.after(since) or ()
    known = [pair for pair in undone if pair.before is not None and pair.after is not None]
    back = [Interval(pair.after.root, pair.before.root, []) for pair in reversed(known)]
    files = functools.partial(states.files.undo, back, why=Reason("redo"), partial=True)
    await states.go_to(checkpoint, "redo", files if back else None, since=since)


async def _find_way(states: Checkpoints, line: Sequence[Numbered], count: int, *, partial: bool) -> Way:
    """Plan an undo of exactly the last cells of a line.

    With `partial`, the plan may restore an earlier checkpoint, or leave files unchanged.

    Raises:
        CheckpointError: The undo is impossible.
    """
    if count > len(line):
        raise CheckpointError(_too_few(len(line), count) + (f": {states.ended}" if states.ended else ""))
    checkpoint = _last_before(states, line, count)
    if checkpoint is None and not (states.begins_fresh and (partial or count == len(line))):
        raise CheckpointError(_cannot_undo(states, line, count))
    state = states.past.fresh if checkpoint is None else checkpoint.moment.state
    if state != line[-count].begun_in and not partial:
        raise CheckpointError(_cannot_undo(states, line, count))
    pairs = states.past.pairs.after(state)
    try:
        intervals, left = await _intervals_of(states, pairs, "" if checkpoint is None else checkpoint.without_files)
        if intervals:
            left = left or await states.files.why_not_undoable(intervals)
    except SnapshotError as error:
        if not partial:
            raise
        intervals, left = None, str(error)
    if left and not partial:
        raise CheckpointError(
            f"{_those(count)} cannot be undone, because files cannot be restored: {left}. To undo the rest, pass partial"
        )
    return Way(checkpoint, intervals, left, pairs[0].spans[0].began.steady / 1e9 if pairs else time.monotonic())


async def _intervals_of(
    states: Checkpoints, pairs: Sequence[Pair] | None, missed: str = ""
) -> tuple[list[Interval] | None, str]:
    """Return the file changes of some state changes (oldest first; None if unknown), or why they are unknown.

    `missed` says why the previous snapshot failed, if known.

    Raises:
        SnapshotError: The files cannot be read.
    """
    if pairs is None:
        return None, "they are too old"
    joined: list[Pair] = []
    gaps, begun = False, {cell.begun_in for cell in states.past.line}
    for pair in pairs:
        if joined and (joined[-1].after is None or pair.before is None):
            # External changes between two unknown file states count as the cells' and the tasks' changes.
            before = joined.pop()
            gaps = gaps or before.state in begun
            joined.append(Pair(pair.state, before.before, pair.after, (*before.spans, *pair.spans)))
        else:
            joined.append(pair)
    if not joined:
        return [], ""
    if joined[0].before is None or (gaps and states.automatic.exact):
        spans = [times for pair in pairs for span in pair.spans for times in span.times()]
        if changed := await states.files.changed_within(spans):
            why = missed or states.automatic.filing.skipped or "the next cell began before they were saved"
            return None, f"{changed}, and {why}"
        return None, ""
    found = []
    for pair in joined:
        # Tasks' changes since the last look are theirs, too: an earlier host may have been killed during their undo.
        unknown = pair.after is None or (pair is joined[-1] and states.past.changing)
        after = (await states.files.now(pair.before)) if unknown else pair.after.root
        found.append(Interval(pair.before.root, after, [times for span in pair.spans for times in span.times()]))
    return found, ""


def _what_stays(paths: Sequence[str]) -> str:
    """Return, for a message, the paths that an undo left unchanged; empty if none."""
    if not paths:
        return ""
    more = f" and {len(paths) - 1} more stay" if len(paths) > 1 else " stays"
    return f"{paths[0][:200]!r}{more} unchanged: modified after the undone cells, or by another program"


def _last_before(states: Checkpoints, line: Sequence[Numbered], count: int) -> Checkpoint | None:
    """Return the checkpoint of the latest state before the last `count` cells, or None.

    The latest one is best, even without files: files of an earlier one would not fit the variables. Actions other than cells,
    such as `put`, also create states, and a restore of an earlier state loses them. Among checkpoints of one state, an
    automatic one has the newest files.
    """
    before, began = {cell.number for cell in line[:-count]}, line[-count].begun_in
    found = [checkpoint for checkpoint in states.all() if checkpoint.moment.is_of(before)]

    def rank(one: Checkpoint) -> tuple[bool, int, int, bool, bool]:
        moment = one.moment
        return moment.state == began, len(moment.past), moment.state, one.snapshot is not None, one.automatic

    return max(found, key=rank, default=None)


def _cannot_undo(states: Checkpoints, line: Sequence[Numbered], count: int) -> str:
    there = {checkpoint.moment.state for checkpoint in states.all()} | ({states.past.fresh} if states.begins_fresh else set())
    exact = [number for number in range(1, len(line) + 1) if line[-number].begun_in in there]
    ways = [f"{_counts(exact, len(line))} can be undone"] if exact else []
    if (checkpoint := _last_before(states, line, count)) is not None or states.begins_fresh:
        back = len(line) - (0 if checkpoint is None else len(checkpoint.moment.past))
        ways.append(f"an undo with partial undoes {'all' if back == len(line) else back}")
    return "; ".join([f"there is no checkpoint from before {_those(count)}: {_why_none(states, line, count)}", *ways])


def _why_none(states: Checkpoints, line: Sequence[Numbered], count: int) -> str:
    automatic = states.automatic
    if line[-count].number in states.past.begun_with:
        after = "it" if count == 1 else "some of them"
        return f"the session began after {after}, from a branch, a checkpoint or a saved session"
    if reason := automatic.why_none(line[-count].begun_in) or (states.ended if count == len(line) else ""):
        return reason
    if not automatic.wanted:
        return "the session was made with recovery='none'"
    if automatic.exact and all(one.moment.state > line[-count].begun_in for one in automatic.all()):
        kept = (
            "the checkpoint of the last cell is"
            if automatic.exact == 1
            else f"the checkpoints of the last {automatic.exact} cells are"
        )
        return f"only {kept} kept, and fewer if memory is short"
    return automatic.skipped or "the next cell began before one was made, or it was dropped"


def _counts(counts: Sequence[int], every: int) -> str:
    """Format ordered numbers of cells, as in ``the last 1 to 3 cells, or all 8``. `every` is the number of all cells."""
    some = [count for count in counts if count != every]
    last = 0
    while last < len(some) and some[last] == last + 1:
        last += 1
    spans = [["the last cell", f"the last 1 to {last} cells"][last > 1]] if last else []
    spans += [f"the last {count}" for count in some[last:][:_FEW]]
    return ", or ".join([*spans, *([f"all {every}"] if every in counts else [])])


def _those(count: int) -> str:
    return "that cell" if count == 1 else "those cells"


def _too_few(there: int, wanted: int) -> str:
    if there == 0:
        return "there is no cell to undo"
    return f"there {'is only 1 cell' if there == 1 else f'are only {there} cells'} to undo, not {shown(wanted)}"
