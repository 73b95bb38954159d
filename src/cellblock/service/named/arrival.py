"""Arrival of a named session from another cluster node."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.common.whole_file import WholeFile
from cellblock.errors import UnsupportedError

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.model.saving import LeftOut

_SHOWN = 5
_ARRIVING = "arriving-"


@dataclass(frozen=True, slots=True)
class Source:
    """The node that a session comes from.

    It is in a file from before the session is stored here until that node has given it away. If this process is killed
    meanwhile, the next one asks that node whether it has.

    Attributes:
        address: Its address.
        port: Its port.
        hold: The token of the hold there.
    """

    address: str
    port: int
    hold: str

    def note(self, directory: Path, session: str) -> None:
        """Write the file of a session.

        Raises:
            OSError: It cannot be written.
        """
        with WholeFile(directory / f"{_ARRIVING}{session}") as file:
            file.write(json.dumps(asdict(self)).encode())


def forget_source(directory: Path, session: str) -> None:
    """Remove the file of a session."""
    with suppress(OSError):  # the next process asks its source, which has given it away
        (directory / f"{_ARRIVING}{session}").unlink()


def noted_sources(directory: Path) -> dict[str, Source]:
    """Return the sources of sessions that were arriving when the last process was killed, by id."""
    found = directory.glob(f"{_ARRIVING}*")
    return {path.name.removeprefix(_ARRIVING): Source(**json.loads(path.read_bytes())) for path in found}


@dataclass(frozen=True, slots=True)
class Arrival:
    """The save from which a session of another node continues.

    Attributes:
        source: The node that it comes from.
        save: The file.
        whole: Whether an incomplete restore is an error. Otherwise, a result reports what is missing.
    """

    source: Source
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
                session.cells.note(
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
