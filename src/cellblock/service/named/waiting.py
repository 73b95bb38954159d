"""Sessions of a killed process that cannot continue yet, because something that they need is missing.

The rule for every temporary or external condition: the kernel stays, requests are refused with the reason,
the daemon's problems name it, and the session continues when the condition has passed. Only a request ends it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from cellblock.errors import BusyError
from cellblock.host.survival.remains import SessionRemains
from cellblock.service.named.arrival import Source
from cellblock.service.named.executions import Execution
from cellblock.service.named.labels import Label
from cellblock.service.named.session import NamedSession

_AGAIN = 5.0
"""Seconds after which to try again."""


@dataclass
class WaitingSession:
    """A session that a killed process has left, until it is taken over.

    Attributes:
        named: The session.
        remains: What is left of it.
        label: Its label.
        running: Its execution that was running when the process was killed, if there was one.
        problem: Why it cannot continue now.
        turn: Held by the attempt to take it over.
        next: When the next attempt is due, by the clock of the loop.
        retrying: The last automatic attempt.
    """

    named: NamedSession
    remains: SessionRemains
    label: Label
    running: Execution | None
    problem: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    next: float = 0.0
    retrying: asyncio.Task[None] | None = None

    def note(self, error: Exception) -> None:
        """Record why the last attempt failed."""
        self.problem = str(error)
        self.next = asyncio.get_running_loop().time() + _AGAIN

    @property
    def error(self) -> BusyError:
        """The answer to requests that need the session."""
        return BusyError(
            f"session {self.named.record.name!r} cannot continue now: {self.problem}. Its kernel and variables are kept, and "
            "it continues when this is resolved",
            _AGAIN,
        )


@dataclass(slots=True)
class Arriving:
    """A session that was arriving when the last process was killed, and may continue on its source.

    Attributes:
        named: The session.
        source: Its source.
        remains: Its kernel here, with the label.
    """

    named: NamedSession
    source: Source
    remains: tuple[SessionRemains, Label] | None = None
