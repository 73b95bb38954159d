"""Operations that save a session to a file, and load one.

Paths are absolute paths on the machine that runs sessions. For URLs, that machine uses its own credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellblock.operations.base import Request, Route

if TYPE_CHECKING:
    from cellblock.model import saving, variables
    from cellblock.operations.data import Data


class Save(
    Request["Data[saving.SaveReport]"],
    op="save",
    repeatable=True,
    route=Route("POST", "/sessions/{session}/save-to", "Save a session to a URL", scope="admin"),
):
    """Save a session to a file.

    Attributes:
        session: The session.
        path: The file: a URL, or a path of the machine that runs sessions.
        workspace: Whether to include the files of the workspace.
        timeout: Milliseconds that pickling may take; -1 for no limit.
    """

    session: str
    path: str
    workspace: bool = False
    timeout: int = 120_000


class Load(
    Request["Data[saving.LoadReport]"],
    op="load",
    route=Route("POST", "/sessions/{session}/load-from", "Load a saved session from a URL", scope="admin"),
):
    """Continue a saved session in a session, which gets a fresh kernel.

    Attributes:
        session: The session.
        path: The file: a URL, or a path of the machine that runs sessions.
        workspace: Whether to unpack the files of the workspace.
        timeout: Milliseconds that loading may take; -1 for no limit.
    """

    session: str
    path: str
    workspace: bool = False
    timeout: int = 120_000


class Export(Request[bool], op="export", repeatable=True):
    """Write the cells of a session as a notebook or a script, depending on the path's suffix. Answered by true."""

    session: str
    path: str


class Variables(
    Request["list[Data[variables.Variable]]"],
    op="variables",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/variables", "List variables", within="variables"),
):
    """List the variables of a session, when it is idle."""

    session: str


class ChangedVariables(Request[dict[str, Any]], op="changed variables"):
    """Return the variables that changed since the last such request; the first time, all variables.

    Answered by ``changed``, the types of new and changed variables, by name, and ``deleted``, a list of names; at
    most 50 of each.
    """

    session: str
