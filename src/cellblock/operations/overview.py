"""Operations on all sessions together, and on the history of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cellblock.operations.base import Limits, Request, Route

if TYPE_CHECKING:
    from cellblock.model import overview
    from cellblock.operations.data import Data

_Count = Annotated[int, Limits(ge=1, le=1000)]


class Watch(Request["Data[overview.Change]"], op="watch", repeatable=True):
    """Follow what happens in all sessions. Answered by one reply for each `Change`, without an end.

    The first says what is there, or what has changed since a position, if that is still known.

    Attributes:
        after: The position of the last change that is known already; empty if none.
    """

    after: str = ""


class Cells(
    Request["list[Data[overview.CellRecord]]"],
    op="cells",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/cells", "List the cells of a session", scope="read", within="cells"),
):
    """List the last cells of a session, oldest first, with those that were undone and those that have not ended."""

    session: str
    count: _Count = 200


class Decisions(
    Request["list[Data[overview.DecisionRecord]]"],
    op="decisions",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/decisions", "List decisions", scope="read", within="decisions"),
):
    """List the last decisions about what the code of a session asked for, oldest first."""

    session: str
    count: _Count = 200
