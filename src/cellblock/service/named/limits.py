"""Limits on the named sessions of one process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellblock.errors import BusyError

if TYPE_CHECKING:
    from cellblock.service.named.session import NamedSession

_RAISE = "raise the setting and restart the daemon"


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedLimits:
    """Limits on named sessions. A request beyond a limit raises `BusyError` and has no effect.

    Attributes:
        sessions: The number of sessions.
        memory: Bytes that all sessions may use before another one is created; None for no limit.
        waiting: Queued executions of one session.
    """

    sessions: int = 256
    memory: int | None = None
    waiting: int = 1000


def check_room(limits: NamedLimits, count: int, sessions: Iterable[NamedSession]) -> None:
    """Check that there is room for one more session.

    Args:
        limits: The limits.
        count: The number of sessions.
        sessions: The sessions that have or had a kernel.

    Raises:
        BusyError: There is no room.
    """
    if count >= limits.sessions:
        raise BusyError(f"there are {count} sessions, which is the limit (max_sessions): end one, or {_RAISE}", 5.0)
    if limits.memory is None:
        return
    used = sum(named.memory for named in sessions)
    if used > limits.memory:
        raise BusyError(
            f"all sessions use {used >> 20:,} MiB together; the limit is {limits.memory >> 20:,} (max_memory): end or restart "
            f"one, or {_RAISE}",
            5.0,
        )
