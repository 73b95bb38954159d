"""Operations on all sessions together, and on the history of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cellblock.operations.base import Limits, Request, Route

if TYPE_CHECKING:
    from cellblock.model import overview
    from cellblock.operations.data import Data

_Count = Annotated[int, Limits(ge=1, le=1000)]


def _last_used_first(answers: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return sorted((item for answer in answers for item in answer), key=lambda item: float(item["used"]), reverse=True)


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


class SearchSessions(
    Request["list[Data[overview.FoundSession]]"],
    op="search sessions",
    repeatable=True,
    route=Route("GET", "/sessions", "Search sessions", scope="read", within="sessions"),
    join=_last_used_first,
):
    """Search the token's sessions, including ended ones that the journal still has. The last used is first.

    Attributes:
        words: Words that a session's name, labels, directory and one of its cells contain, separated by spaces. Case does
            not matter for letters of English. Of each cell, the first 10,000 characters are searched.
        count: The maximum number of sessions.
    """

    words: Annotated[str, Limits(max_length=400)] = ""
    count: _Count = 100
