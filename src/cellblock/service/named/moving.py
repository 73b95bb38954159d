"""Moves of named sessions to other cluster nodes: checks, and holding a session between two cells."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cellblock.errors import BusyError, MovingError, StateError, UnsupportedError
from cellblock.host.checkpoints.branches import is_branch
from cellblock.model.sessions import OWN_KERNEL

if TYPE_CHECKING:
    from cellblock.service.named.session import NamedSession

_SHOWN = 5
_LEAST = 0.02  # minimum seconds that a session has to become idle


def check_can_move(named: NamedSession, *, whole: bool) -> None:
    """Check for state that no save contains.

    Raises:
        UnsupportedError: The session cannot move, or not completely.
    """
    record = named.record
    if record.kernel_type != OWN_KERNEL:
        raise UnsupportedError(f"only Python sessions can move, and its kernel type is {record.kernel_type!r}")
    if is_branch(record.workspace):
        raise UnsupportedError("it is a branch, and branches stay on the node of their session")
    if not whole or (session := named.current) is None:
        return
    if named.runs_programs:
        raise UnsupportedError("it has running programs, which a move would end")
    if session.has_packages:
        raise UnsupportedError("it has installed packages, which a move would lose")
    if names := [checkpoint.name for checkpoint in session.checkpoints() if not checkpoint.automatic]:
        raise UnsupportedError(f"a move would lose its checkpoints: {', '.join(map(repr, names[:_SHOWN]))}")


@asynccontextmanager
async def held(named: NamedSession, patience: float, waits_for: Callable[[NamedSession], str]) -> AsyncGenerator[str, None]:
    """Hold a session between two cells, so that other requests about it are refused.

    Args:
        named: The session.
        patience: Seconds to wait until the session is idle.
        waits_for: Returns what the session's code waits for (`Submissions.waits_for`).

    Yields:
        The token of the hold.

    Raises:
        BusyError: The session is not idle in time.
        MovingError: The session is already moving.
    """
    if named.held:
        raise moving_error(named.record.name)
    took = False
    try:
        try:
            async with asyncio.timeout(max(patience, _LEAST)):
                while not took:
                    await named.turn.acquire()
                    if named.unfinished:  # others wait behind this: let them run first
                        named.turn.release()
                        await asyncio.sleep(0)
                    else:
                        took = True
                hold = named.held = secrets.token_hex(8)
                await named.unasked.wait()
        except TimeoutError:
            what = "it is answering requests" if took else f"it runs code{waits_for(named)}"
            raise BusyError(what, 1.0) from None
        if named.ended:
            raise StateError("it has ended")
        yield hold
    finally:
        if took:
            named.held = ""
            named.turn.release()


def moving_error(name: str) -> MovingError:
    return MovingError(f"session {name!r} is moving to another node of the cluster: nothing was done, ask again")
