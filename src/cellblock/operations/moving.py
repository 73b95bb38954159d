"""Moves of a session between cluster nodes, between two cells. Only nodes send these requests to each other.

The new node asks the old one to give the session away. The session is held while that answer is being read. When the new
node has loaded the save, it reports that. The old node then ends the session permanently, and only then does the new one
continue it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellblock.operations.base import Request

if TYPE_CHECKING:
    from cellblock.model import sessions
    from cellblock.operations.data import Data


class GiveAway(Request[Any], op="give away"):
    """Hold a session between two cells, and send its state.

    Answered by parts: first a dictionary with the session's ``record``, ``options``, ``permissions``, ``network`` and past
    ``executions``, the ``hold`` for `GivenAway`, and the size of the save in bytes; then these bytes. Until the answer is
    closed, the session is held, and other requests are refused with `MovingError`. If the answer is closed before
    `GivenAway`, the session continues.

    Attributes:
        session: The session's id or name.
        patience: Milliseconds to wait until it is idle.
        whole: Whether losing a part of it is an error.
    """

    session: str
    patience: int = 0
    whole: bool = True


class GivenAway(Request[bool], op="given away", repeatable=True):
    """End a held session that continues elsewhere. Answered when nothing of it runs here.

    Attributes:
        session: The session's id.
        hold: The token of the hold, from the answer of `GiveAway`.
    """

    session: str
    hold: str


class TakeOver(Request["Data[sessions.SessionRecord]"], op="take over"):
    """Continue a session here that another node gives away.

    Attributes:
        session: The session's name.
        address: The address of the other node.
        port: The port of the other node.
        grant: The placement (`Lease.check`).
        patience: As for `GiveAway`.
        whole: As for `GiveAway`.
    """

    session: str
    address: str
    port: int
    grant: str
    patience: int = 0
    whole: bool = True
