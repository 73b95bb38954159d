"""Plans an undo: finds the checkpoint to go to and the files to bring back, or says why there are none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cellblock.errors import CheckpointError, SnapshotError, shown
from cellblock.host.kernels.pairs import Pair
from cellblock.host.snapshots.undo import Interval

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.past import Numbered

_FEW = 3
"""Maximum number of counts in a message."""


class Way(NamedTuple):
    """The way back over the last cells.

    Attributes:
        checkpoint: The checkpoint to go to; None for the fresh kernel that preceded all cells.
        intervals: What the cells have done to files; None to leave files as they are.
        left: Why files stay as they are; empty if they do not.
        since: When the first of the cells began (`time.monotonic`).
    """

    checkpoint: Checkpoint | None
    intervals: Sequence[Interval] | None
    left: str
    since: float


async def find_way(states: Checkpoints, line: Sequence[Numbered], count: int, *, partial: bool) -> Way:
    """Plan an undo of exactly the last cells.

    Args:
        states: The session's checkpoints.
        line: The cells that led to its present state.
        count: How many of them to undo.
        partial: Whether it may lead further back, or leave files as they are.

    Raises:
        CheckpointError: There is no way.
    """
    if count > len(line):
        raise CheckpointError(_too_few(len(line), count) + (f": {states.ended}" if states.ended else ""))
    checkpoint = _last_before(states, line, count)
    if checkpoint is None and not (states.begins_fresh and (partial or count == len(line))):
        raise CheckpointError(_cannot_undo(states, line, count))
    state = states.fresh_state if checkpoint is None else checkpoint.moment.state
    if state != line[-count].begun_in and not partial:
        raise CheckpointError(_cannot_undo(states, line, count))
    pairs = states.past.pairs.after(state)
    try:
        intervals, left = await intervals_of(states, pairs, "" if checkpoint is None else checkpoint.without_files)
        if intervals:
            left = left or await states.files.why_not_undoable(intervals)
    except SnapshotError as error:
        if not partial:
            raise
        intervals, left = None, str(error)
    if left and not partial:
        raise CheckpointError(
            f"{_those(count)} cannot be undone, because files cannot be brought back: {left}. With partial, all else is undone"
        )
    return Way(checkpoint, intervals, left, pairs[0].spans[0].began.steady / 1e9 if pairs else time.monotonic())


async def intervals_of(
    states: Checkpoints, pairs: Sequence[Pair] | None, missed: str = ""
) -> tuple[list[Interval] | None, str]:
    """Return what some changes of the state have done to files, or why that is not known, if they have done anything.

    Args:
        states: The session's checkpoints.
        pairs: The changes, oldest first; None if they are not known.
        missed: Why the files before them were not kept, if that is known.

    Raises:
        SnapshotError: The files cannot be read.
    """
    if pairs is None:
        return None, "they are too long ago"
    joined: list[Pair] = []
    gaps, begun = False, {cell.begun_in for cell in states.past.line}
    for pair in pairs:
        if joined and (joined[-1].after is None or pair.before is None):
            # What others have saved in a moment whose files are not known counts as the cells' and the tasks'.
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
            why = missed or states.automatic.filing.skipped or "the next cell began before they were kept"
            return None, f"{changed}, and {why}"
        return None, ""
    found = []
    for pair in joined:
        # What tasks have changed since the last look is theirs, too: an earlier host may have been killed in an undo of them.
        unknown = pair.after is None or (pair is joined[-1] and states.past.changing)
        after = (await states.files.now(pair.before)) if unknown else pair.after.root
        found.append(Interval(pair.before.root, after, [times for span in pair.spans for times in span.times()]))
    return found, ""


def what_stays(paths: Sequence[str]) -> str:
    """Return, for a message, which paths an undo has left as they are; empty if there are none."""
    if not paths:
        return ""
    more = f" and {len(paths) - 1} more stay" if len(paths) > 1 else " stays"
    return f"{paths[0][:200]!r}{more} as now: changed after the undone cells, or by somebody else"


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
