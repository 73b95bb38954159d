"""Finds the way that an undo goes, or says why there is none."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cellblock.errors import CheckpointError, SnapshotError, shown

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.past import Numbered
    from cellblock.host.snapshots import Snapshot
    from cellblock.host.snapshots.times import Spans

_FEW = 3
"""Maximum number of counts in a message."""


class Way(NamedTuple):
    """The way back over the last cells.

    Attributes:
        checkpoint: The checkpoint to go to; None for the fresh kernel that preceded all cells.
        files: The files to bring back; None if none were kept.
        spans: When files were changed that are brought back.
        left: Why files stay as they are; empty if they do not.
        since: When the first of the cells began (`time.monotonic`).
    """

    checkpoint: Checkpoint | None
    files: Snapshot | None
    spans: Spans
    left: str
    since: float


async def find_way(states: Checkpoints, line: Sequence[Numbered], count: int, *, partial: bool) -> Way:
    """Find the way back over exactly the last cells.

    Args:
        states: The session's checkpoints.
        line: The cells that led to its present state.
        count: How many of them to undo.
        partial: Whether it may lead further back, or leave files as they are.

    Raises:
        CheckpointError: There is none.
    """
    if count > len(line):
        raise CheckpointError(_too_few(len(line), count) + (f": {states.ended}" if states.ended else ""))
    checkpoint = _last_before(states, line, count)
    if checkpoint is None and not (states.begins_fresh and (partial or count == len(line))):
        raise CheckpointError(_cannot_undo(states, line, count))
    state = states.fresh_state if checkpoint is None else checkpoint.moment.state
    files = states.first if checkpoint is None else checkpoint.snapshot
    kept = () if checkpoint is None else checkpoint.moment.past
    spans = states.past.spans_after(state, kept)
    if state != line[-count].begun_in and not partial:
        raise CheckpointError(_cannot_undo(states, line, count))
    since = states.past.left_at(state, kept)
    if since is not None and checkpoint is not None and checkpoint.held_at > since:
        left = "they were kept after a branch with the same files had changed them"
    else:
        left = await _why_files_stay(states, checkpoint, files, spans, line[len(kept) :])
    if left and not partial:
        raise CheckpointError(
            f"{_those(count)} cannot be undone, because files cannot be brought back: {left}. With partial, all else is undone"
        )
    return Way(checkpoint, files, spans, left, time.monotonic() if since is None else since)


def what_stays(paths: Sequence[str]) -> str:
    """Return, for a message, what an undo has left as it is (`Plan.kept`); empty if there is nothing."""
    if not paths:
        return ""
    more = f" and {len(paths) - 1} more stay" if len(paths) > 1 else " stays"
    why = "snapshots leave it out, or somebody else may have changed it or a folder above it"
    return f"{paths[0][:200]!r}{more} as after the undone cells: {why}"


def what_is_aside(files: Mapping[str, str]) -> str:
    """Return, for a message, where an undo keeps what it has removed or replaced (`Aside.files`); empty if nothing is kept."""
    if not files:
        return ""
    path, where = next(iter(files.items()))
    more = f", and {len(files) - 1} more beside it" if len(files) > 1 else ""
    return f"What the undo has removed or replaced is kept: {path[:200]!r} in {where[:300]!r}{more}"


async def _why_files_stay(
    states: Checkpoints, checkpoint: Checkpoint | None, files: Snapshot | None, spans: Spans, undone: Sequence[Numbered]
) -> str:
    """Return why files cannot be restored; empty if they can, or if none have changed.

    Args:
        states: The session's checkpoints.
        checkpoint: The one to go to; None for the fresh kernel.
        files: Its files; None if none were kept.
        spans: When the cells after it have changed files.
        undone: These cells.
    """
    try:
        if files is not None:
            state = states.fresh_state if checkpoint is None else checkpoint.moment.state
            between = states.automatic.files_since(state)
            kept = [(files, spans), *((one, states.past.spans_after(later)) for later, one in between.items())]
            return (
                await states.files.unkept_changed(kept)
                or await states.files.lasting_changed(kept)
                or states.automatic.why_not_known(cell.begun_in for cell in undone if cell.begun_in > state)
            )
        if not (changed := await states.files.changed_within(spans)):
            return ""
    except SnapshotError as error:
        return str(error)
    if checkpoint is not None and not checkpoint.automatic:
        why = "the checkpoint was made with files='shared'"
    else:
        why = checkpoint.without_files if checkpoint is not None else ""
        why = why or states.automatic.filing.skipped or "the next cell began before they were kept"
    return f"{changed}, and {why}"


def _last_before(states: Checkpoints, line: Sequence[Numbered], count: int) -> Checkpoint | None:
    """Return the checkpoint of the latest state from before the last `count` cells of a line; None if there is none.

    The latest, with or without files: those of an earlier one would not fit the variables. Actions other than cells, such
    as `put`, also make another state, and going back from it to one before leaves it: the state in which the first of the
    cells began is better than any later one. Among checkpoints of the same state, an automatic one has the newest files.
    """
    before, began = {cell.number for cell in line[:-count]}, line[-count].begun_in
    found = [checkpoint for checkpoint in states.all() if checkpoint.moment.is_of(before)]

    def rank(one: Checkpoint) -> tuple[bool, int, int, bool, bool]:
        moment = one.moment
        return moment.state == began, len(moment.past), moment.state, one.snapshot is not None, one.automatic

    return max(found, key=rank, default=None)


def _cannot_undo(states: Checkpoints, line: Sequence[Numbered], count: int) -> str:
    there = {checkpoint.moment.state for checkpoint in states.all()} | ({states.fresh_state} if states.begins_fresh else set())
    exact = [number for number in range(1, len(line) + 1) if line[-number].begun_in in there]
    ways = [f"{_counts(exact, len(line))} can be undone"] if exact else []
    if (checkpoint := _last_before(states, line, count)) is not None or states.begins_fresh:
        back = len(line) - (0 if checkpoint is None else len(checkpoint.moment.past))
        ways.append(f"an undo with partial goes back over {'all' if back == len(line) else back}")
    return "; ".join([f"there is no checkpoint from before {_those(count)}: {_why_none(states, line, count)}", *ways])


def _why_none(states: Checkpoints, line: Sequence[Numbered], count: int) -> str:
    automatic = states.automatic
    if line[-count].number in states.begun_with:
        after = "it" if count == 1 else "some of them"
        return f"the session began after {after}, as a branch, or with a checkpoint or a saved session"
    if reason := automatic.why_none(line[-count].begun_in) or (states.ended if count == len(line) else ""):
        return reason
    if not automatic.wanted:
        return "the session was made with recovery='none'"
    if automatic.exact and all(one.moment.state > line[-count].begun_in for one in automatic.all()):
        kept = "that of the last cell is" if automatic.exact == 1 else f"those of the last {automatic.exact} cells are"
        return f"only {kept} kept, and fewer if memory is short"
    return automatic.skipped or "the next cell came before one was made, or it was dropped since"


def _counts(counts: Sequence[int], every: int) -> str:
    """Return some numbers of cells in words, such as ``the last 1 to 3 cells, or all 8``.

    Args:
        counts: The numbers, in order.
        every: The number of all cells.
    """
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
