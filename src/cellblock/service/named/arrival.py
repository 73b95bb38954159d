"""Arrival of a named session from another cluster node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.errors import UnsupportedError

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.model.saving import LeftOut

_SHOWN = 5


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
