"""Compares a session's recorded state with what its killed host left, and says what the next host must do.

Pure: tests apply it to each prefix of a log and each world.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile
from typing import NamedTuple

from cellblock.host.kernels.session_state import SessionState, next_state
from cellblock.host.kernels.state_events import (
    Abandoned,
    Dropped,
    Event,
    Going,
    Placed,
    RedosDropped,
    Renewed,
    Rested,
    Saved,
    Unsent,
    Went,
)


class LeftKernel(NamedTuple):
    """A kernel that a killed host left.

    Attributes:
        number: Its number.
        cells: Number of cells begun in it.
        replacing: Whether it died, and its replacement had begun.
    """

    number: int
    cells: int = 0
    replacing: bool = False


class World(NamedTuple):
    """What a killed host left of a session.

    Attributes:
        copies: The ids of the checkpoints whose copies are alive, also of undone states.
        kernel: The number of the kernel that continues; 0 for none.
        position: The position of its next cell (`Kernel.position`).
        unrecorded: Whether it replaced another one, and the log does not say so.
        recovers: Whether the session may continue from a checkpoint.
    """

    copies: AbstractSet[str]
    kernel: int = 0
    position: str = ""
    unrecorded: bool = False
    recovers: bool = True


class Steps(NamedTuple):
    """What the next host must do, in this order.

    Attributes:
        events: What happened, but was not recorded.
        finish: The change of state to finish, if any. Some files may already be restored.
        start: The checkpoint to create the kernel from, if there is no kernel; None for a fresh one.
        drop: The checkpoints that nothing needs.
    """

    events: Sequence[Event]
    finish: Going | None
    start: Saved | None
    drop: Sequence[str]


def kernel_to_continue(state: SessionState | None, kernels: Sequence[LeftKernel]) -> tuple[int, bool]:
    """Choose the kernel that continues, from a session's kernels, oldest first.

    The others end: one was about to replace another.

    Returns:
        Its number, or 0; and `World.unrecorded`.
    """
    known = 0 if state is None else state.kernel
    if [kernel.number for kernel in kernels] != [known]:
        # A kernel that died is replayed, unless its replacement has run a cell: its last result may not have been delivered.
        dead = 0
        for kernel in kernels:
            dead = kernel.number if kernel.replacing else 0 if kernel.cells else dead
        if dead:
            return dead, False
    if any(kernel.number == known for kernel in kernels):
        return known, False
    if kernels and (state is None or state.going is not None):
        return kernels[-1].number, state is not None
    return 0, False


def reconcile(state: SessionState, world: World) -> Steps:
    """Return the steps from what a killed host left to what its state says, or the other way round."""
    there = {saved.id: saved for saved in state.checkpoints.values() if saved.id in world.copies}
    lost: list[Event] = [Dropped(one) for one in state.checkpoints if one not in there]
    redoable = [*takewhile(lambda undid: undid.can_continue(world.copies), reversed(state.redos))]
    if len(redoable) < len(state.redos):
        lost.append(RedosDropped(len(redoable)))
    happened = _unrecorded(state, world) if world.kernel else []
    changed = any(isinstance(event, (Went, Renewed)) for event in happened)
    going = None if changed else state.going
    finish = going if going is not None and going.way in ("undo", "redo", "restore") else None
    start = None if world.kernel or not world.recovers else _last_state(state, there.values(), going)
    drop = [] if finish or changed else [one.id for one in there.values() if one.passing]
    return Steps([*happened, *lost], finish, start, drop)


def _unrecorded(state: SessionState, world: World) -> list[Event]:
    """Return the events that the kernel shows and the log lacks."""
    events: list[Event] = [] if world.kernel == state.kernel else [Placed(world.kernel)]
    going, last = state.going, state.cell
    if not world.unrecorded:
        return [*events, Unsent()] if last.position == world.position and not last.added else events
    if going is None or not going.checkpoint:
        left = [Abandoned([cell.number for cell in state.line])] if going is not None and going.way == "undo" else []
        return [*events, *left, Renewed(next_state())]
    if (target := state.checkpoints.get(going.checkpoint)) is None:
        return events
    cells = tuple(cell.number for cell in target.line), target.line
    went = Went(*cells, target.state, going.began, tasks=target.pending)
    return [*events, went, *([Rested()] if target.pending else [])]


def _last_state(state: SessionState, there: Iterable[Saved], going: Going | None) -> Saved | None:
    """Return the last state from which a kernel can be created."""
    if going is not None and not going.checkpoint:
        return None
    line = {cell.number for cell in state.line}
    found = [one for one in there if not one.line or one.line[-1].number in line]
    if going is not None:
        found = [one for one in found if (one.id, "crash") == (going.checkpoint, going.way)]
    return max(found, key=lambda one: (len(one.line), one.state), default=None)
