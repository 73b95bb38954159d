"""Requests to write a session to a file, and to read one from a file. Paths are absolute paths of the daemon's machine."""

from __future__ import annotations

from typing import ClassVar

from cellblock.wire.record import record


@record
class Save:
    """Save a session to a file. Answered by a `SaveReport`.

    Attributes:
        session: The session.
        path: The file.
        workspace: Whether to save the files of the workspace, too.
        timeout: Milliseconds that pickling may take; -1 for no limit.
    """

    op: ClassVar[str] = "save"
    session: str
    path: str
    workspace: bool = False
    timeout: int = 120_000


@record
class Load:
    """Continue a saved session in a session, which gets a fresh kernel. Answered by a `LoadReport`.

    Attributes:
        session: The session.
        path: The file.
        workspace: Whether to unpack the files of the workspace.
        timeout: Milliseconds that loading may take; -1 for no limit.
    """

    op: ClassVar[str] = "load"
    session: str
    path: str
    workspace: bool = False
    timeout: int = 120_000


@record
class Export:
    """Write the cells of a session as a notebook or a script, as the path's suffix says. Answered by true."""

    op: ClassVar[str] = "export"
    session: str
    path: str


@record
class Variables:
    """List the variables of a session. Answered by a list of `Variable`."""

    op: ClassVar[str] = "variables"
    session: str
