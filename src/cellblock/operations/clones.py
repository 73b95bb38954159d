"""The changes of sessions that work in a clone of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellblock.operations.base import Request, Route

if TYPE_CHECKING:
    from cellblock.model import clones
    from cellblock.operations.data import Data

_CLONE = "/sessions/{session}/clone"


class CloneDiff(
    Request["Data[clones.CloneChanges]"],
    op="clone diff",
    repeatable=True,
    route=Route("GET", _CLONE, "Show the changes of a clone", scope="read"),
):
    """Return the changes in the clone of a session, committed or not, since it was made.

    Attributes:
        session: The session.
    """

    session: str


class CloneFetch(
    Request["Data[clones.Fetched]"],
    op="clone fetch",
    repeatable=True,
    route=Route("POST", f"{_CLONE}/fetch", "Fetch the commits of a clone", scope="admin"),
):
    """Fetch the commits of a session's clone into the repository of the project, as ``refs/remotes/cellblock/NAME``.

    Attributes:
        session: The session.
    """

    session: str


class CloneApply(
    Request["Data[clones.Applied]"],
    op="clone apply",
    route=Route("POST", f"{_CLONE}/apply", "Apply the changes of a clone", scope="admin"),
):
    """Apply the changes of a session's clone, committed or not, to the working copy of the project.

    Attributes:
        session: The session.
        three_way: Whether to merge changes that do not fit, which can leave conflicts.
        allow_protected: Whether to write names that programs of the user obey, such as .envrc, and links that lead elsewhere.
    """

    session: str
    three_way: bool = False
    allow_protected: bool = False
