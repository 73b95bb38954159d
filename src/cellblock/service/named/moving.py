"""Moves of named sessions between cluster nodes: holding a session between two cells, and continuing one that arrives."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.errors import BusyError, MovingError, StateError, UnsupportedError
from cellblock.host.checkpoints.branches import is_branch
from cellblock.model.sessions import OWN_KERNEL

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.model.saving import LeftOut
    from cellblock.service.named.session import NamedSession

_SHOWN = 5
_LEAST = 0.02  # minimum seconds that a session has to become idle


@dataclass(frozen=True, slots=True)
class Arrival:
    """The save from which a session of another node continues.

    Attributes:
        save: The file.
        whole: Whether an incomplete restore is an error. Otherwise, a result reports what is missing.
    """

    save: Path
    whole: bool

    async def load(self, session: Session) -> None:
        """Load the save into a fresh session.

        Raises:
            CellblockError: The save cannot be loaded, or not completely.
        """
        changed = await session.saving.load_missing(self.save)
        left_out = [] if session.loaded is None else session.loaded.left_out
        if self.whole:
            check_whole(left_out)
            if changed:
                raise UnsupportedError(
                    f"its directory on that node has other files of these names: {', '.join(changed[:_SHOWN])}"
                )
            return
        for what, names in (
            ("Not moved", [f"{one.name} ({one.reason})" for one in left_out]),
            ("Files that already existed and stay unchanged", changed),
        ):
            if names:
                more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                session.reader.note(
                    f"[cellblock] The session was moved to another node. {what}: {', '.join(names[:_SHOWN])}{more}."
                )


def check_whole(left_out: list[LeftOut]) -> None:
    """Check that moving a session would lose nothing.

    Raises:
        UnsupportedError: Something would be lost.
    """
    if left_out:
        more = f", and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
        shown = ", ".join(f"{one.name} ({one.reason})" for one in left_out[:_SHOWN])
        raise UnsupportedError(f"this would be lost: {shown}{more}")


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
async def held(
    named: NamedSession, patience: float, waits_for: Callable[[NamedSession], str] = lambda _named: ""
) -> AsyncGenerator[str, None]:
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
