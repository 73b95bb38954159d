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

    The first reply has the current state, or the changes since a known position.

    Attributes:
        after: The position of the last known change; empty if none.
    """

    after: str = ""


class Cells(
    Request["list[Data[overview.CellRecord]]"],
    op="cells",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/cells", "List the cells of a session", scope="read", within="cells"),
):
    """List the last cells of a session, oldest first, including undone and unfinished ones."""

    session: str
    count: _Count = 200


class Decisions(
    Request["list[Data[overview.DecisionRecord]]"],
    op="decisions",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/decisions", "List decisions", scope="read", within="decisions"),
):
    """List the last decisions about requests of a session's code, oldest first."""

    session: str
    count: _Count = 200
