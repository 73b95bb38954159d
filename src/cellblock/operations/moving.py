"""Moving a session from one node of a cluster to another one, between two cells. Only nodes ask each other for this.

The node that takes a session over asks the other one to give it away. While that answer is being read, the session stands
still. When its save is loaded, the new node says so; the old one ends the session for good, and only then does it go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellblock.operations.base import Request

if TYPE_CHECKING:
    from cellblock.model import sessions
    from cellblock.operations.data import Data


class GiveAway(Request[Any], op="give away"):
    """Hold a session between two cells, and send what it is made of.

    Answered by parts: first a dictionary with the session's ``record``, ``options``, ``permissions`` and past ``executions``,
    the ``hold`` for `GivenAway`, and how many bytes the save has; then these bytes. Until the answer is closed, the session is
    held: other requests are refused with `MovingError`. It goes on if the answer is closed before `GivenAway`.

    Attributes:
        session: The session's id or name.
        patience: Milliseconds to wait until it is idle.
        whole: Whether it is an error if something of it would be lost.
    """

    session: str
    patience: int = 0
    whole: bool = True


class GivenAway(Request[bool], op="given away", repeatable=True):
    """End a session that is held, as it goes on elsewhere from now on. Answered when nothing of it runs here any more.

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
        port: Its port.
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
