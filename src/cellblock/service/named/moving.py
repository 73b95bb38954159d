"""Moves named sessions between the nodes of a cluster: holds one between two cells, and continues one that arrives."""

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
    """The save that a session from another node continues from.

    Attributes:
        save: The file.
        whole: Whether it is an error if something of it cannot be brought back. Otherwise, a result says what.
    """

    save: Path
    whole: bool

    async def load(self, session: Session) -> None:
        """Load it into a fresh session.

        Raises:
            CellblockError: It cannot be loaded, or not as a whole.
        """
        changed = await session.saving.load_missing(self.save)
        left_out = [] if session.loaded is None else session.loaded.left_out
        if self.whole:
            check_whole(left_out)
            if changed:
                raise UnsupportedError(f"other files of these names are in its directory there: {', '.join(changed[:_SHOWN])}")
            return
        for what, names in (
            ("What could not be brought along", [f"{one.name} ({one.reason})" for one in left_out]),
            ("Files that were there already and stay as they are", changed),
        ):
            if names:
                more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                session.reader.note(
                    f"[cellblock] The session was moved to another node. {what}: {', '.join(names[:_SHOWN])}{more}."
                )


def check_whole(left_out: list[LeftOut]) -> None:
    """Check that nothing of a session is lost by moving it.

    Raises:
        UnsupportedError: Something is.
    """
    if left_out:
        more = f", and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
        shown = ", ".join(f"{one.name} ({one.reason})" for one in left_out[:_SHOWN])
        raise UnsupportedError(f"this would be lost: {shown}{more}")


def check_can_move(named: NamedSession, *, whole: bool) -> None:
    """Check for state that no save contains.

    Raises:
        UnsupportedError: The session cannot move, or not as a whole.
    """
    record = named.record
    if record.kernel_type != OWN_KERNEL:
        raise UnsupportedError(f"only Python sessions move, and its kernel type is {record.kernel_type!r}")
    if is_branch(record.workspace):
        raise UnsupportedError("it is a branch, which stays on the node of its session")
    if not whole or (session := named.current) is None:
        return
    if named.runs_programs:
        raise UnsupportedError("programs run in it, and would be ended")
    if session.has_packages:
        raise UnsupportedError("packages were installed in it, and would be lost")
    if names := [checkpoint.name for checkpoint in session.checkpoints() if not checkpoint.automatic]:
        raise UnsupportedError(f"its checkpoints would be lost: {', '.join(map(repr, names[:_SHOWN]))}")


@asynccontextmanager
async def held(
    named: NamedSession, patience: float, waits_for: Callable[[NamedSession], str] = lambda _named: ""
) -> AsyncGenerator[str, None]:
    """Hold a session between two cells, while this is entered: other requests about it are refused.

    Args:
        named: The session.
        patience: Seconds to wait until it is idle.
        waits_for: Returns what its code waits for (`Submissions.waits_for`).

    Yields:
        The token of the hold.

    Raises:
        BusyError: It is not idle in time.
        MovingError: It moves already.
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
            what = "requests for it are being carried out" if took else f"it runs code{waits_for(named)}"
            raise BusyError(what, 1.0) from None
        if named.ended:
            raise StateError("it has ended")
        yield hold
    finally:
        if took:
            named.held = ""
            named.turn.release()


def moving_error(name: str) -> MovingError:
    """Return the error for a request about a session that is held."""
    return MovingError(f"session {name!r} is moving to another node of the cluster: nothing was done, ask again")
