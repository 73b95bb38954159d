"""Options and budget of automatic checkpoints, and the state from which a session continues when its kernel dies."""

from __future__ import annotations

import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from cellblock.errors import InvalidInputError, shown

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint

_APART = 0.02
"""Minimum seconds between the starts of two automatic checkpoints of a host."""

_MAX_KEPT = 500
"""Earlier automatic checkpoints of all sessions of a host: 1 to 2 MB each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact:
    """Automatic checkpoints of every state: a session makes one at the end of each cell, and the next cell waits for it.

    Attributes:
        keep: How many cells can be undone: as many checkpoints are kept, plus the one of the present state.

    Raises:
        InvalidInputError: The number is out of range.
    """

    keep: int = 5

    def __post_init__(self) -> None:
        _check_keep(self.keep)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rolling:
    """Automatic checkpoints for programs that run one cell right after the other: a session makes them while it is idle.

    Attributes:
        keep: How many are kept: how far `Session.undo` can go back.
        after: Seconds from the end of a cell to its checkpoint, or a little more if the host has many sessions. If the next
            cell comes earlier, none is made.
        longest: Seconds that one may take. If one takes longer, no more are made.

    Raises:
        InvalidInputError: A value is out of range.
    """

    keep: int = 5
    after: float = 0.02
    longest: float = 1.0

    def __post_init__(self) -> None:
        _check_keep(self.keep)
        for name in ("after", "longest"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < 3600:
                raise InvalidInputError(f"{name} must be a positive number of seconds, not {value!r}")


def _check_keep(keep: object) -> None:
    if type(keep) is not int or not 1 <= keep <= 1000:
        raise InvalidInputError(f"keep must be a number from 1 to 1000, not {keep!r}")


RecoveryOption: TypeAlias = Exact | Rolling | Literal["exact", "rolling", "none"]
"""The session option that selects its automatic checkpoints."""


def check_recovery(wanted: object) -> None:
    """Check the `recovery` option.

    Raises:
        InvalidInputError: It is not valid.
    """
    if not isinstance(wanted, Exact | Rolling) and wanted not in ("exact", "rolling", "none"):
        raise InvalidInputError(f"recovery must be 'exact', 'rolling', 'none', an Exact or a Rolling, not {shown(wanted)}")


class Budget:
    """Limits the automatic checkpoints of all sessions of a host.

    Of those made while a session is idle: 50 per second. A copy takes as much processor time as several small cells, and the
    next cell copies the pages that it writes to: many sessions with short pauses between cells would spend more time on copies
    than on cells.

    Of those that are not the last one of their session: 500 at a time.
    """

    def __init__(self) -> None:
        self._next = 0.0
        self._kept: deque[weakref.ref[Checkpoint]] = deque()  # each holds its session's history, and so all of it

    def ask(self) -> float:
        """Return the seconds to wait; 0: the caller may go ahead."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        self._next = now + _APART
        return 0.0

    def spend(self, checkpoint: Checkpoint) -> None:
        """Count a checkpoint that is no longer the last one of its session, and drop the oldest if there are too many."""
        self._kept.append(weakref.ref(checkpoint))
        if len(self._kept) > _MAX_KEPT:
            self._kept = deque(kept for kept in self._kept if (one := kept()) is not None and one.alive)
        while len(self._kept) > _MAX_KEPT:
            if (oldest := self._kept.popleft()()) is not None:
                oldest.discard()


@dataclass(frozen=True, slots=True)
class Restored:
    """The state from which a session continues whose kernel has died.

    Attributes:
        execution_count: The number of the last cell before that state.
        lost: Cells between that state and the death, whose effects are lost.
    """

    execution_count: int
    lost: int

    @property
    def sentence(self) -> str:
        """The same in words for people."""
        where = f"its state after cell {self.execution_count}" if self.execution_count else "its first state"
        if not self.lost:
            return f"The session goes on from {where}: variables are kept as they were."
        cells = "one later cell" if self.lost == 1 else f"{self.lost} later cells"
        return f"The session goes on from {where}; what {cells} changed in memory is lost."


def kind_of(recovery: RecoveryOption) -> Exact | Rolling | None:
    """Return how automatic checkpoints are made for the `recovery` option; None if none are made."""
    match recovery:
        case "exact":
            return Exact()
        case "rolling":
            return Rolling()
        case "none":
            return None
    return recovery
