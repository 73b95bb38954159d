"""Files and packages of a session.

A path is relative to the workspace. An absolute path outside the workspace names a file as the session's own code sees it,
and is accessed with that code's rights (`Session.fs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellblock.operations.base import MAX_REQUEST, Request, Route

if TYPE_CHECKING:
    from cellblock import model
    from cellblock.model import files
    from cellblock.operations.data import Data


class ListFiles(
    Request["list[Data[files.FileInfo]]"],
    op="list files",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/files", "List a folder", scope="read", within="files"),
):
    """List a folder of a session's workspace, sorted by path."""

    session: str
    path: str = "."
    recursive: bool = False


class ReadFile(Request[bytes], op="read file", repeatable=True):
    """Read a file."""

    session: str
    path: str
    max_bytes: int = MAX_REQUEST


class WriteFile(Request["Data[files.FileInfo]"], op="write file"):
    """Write the body to a file."""

    session: str
    path: str


class ReadPart(Request[dict[str, Any]], op="read part", repeatable=True):
    """Read a part of a file. Answered by ``file``, a `FileInfo`, and ``data``, the bytes.

    Attributes:
        session: The session.
        path: The file.
        offset: Where the part begins; at or beyond the end, it is empty.
        count: How many bytes to read at most.
    """

    session: str
    path: str
    offset: int = 0
    count: int = 4 * 1024 * 1024


class WritePart(Request["Data[files.FileInfo] | None"], op="write part"):
    """Write a file in parts, which are the bodies. Answered by null until its end.

    Attributes:
        session: The session.
        path: The file. It appears when it is complete.
        upload: Identifies the upload: a unique text, the same for all of its parts.
        more: Whether more parts follow. Without a part for a minute, the upload is aborted.
        abort: Whether to abort the upload now.
    """

    session: str
    path: str
    upload: str
    more: bool = True
    abort: bool = False


class StatFile(
    Request["Data[files.FileInfo]"],
    op="stat file",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/stat", "Describe a file", scope="read"),
):
    """Describe the file or folder at a path."""

    session: str
    path: str


class MakeFolder(
    Request[bool],
    op="make folder",
    repeatable=True,
    route=Route("POST", "/sessions/{session}/folders", "Make a folder", within="done"),
):
    """Create a folder and its parent folders. The folder may exist already."""

    session: str
    path: str


class RenameFile(
    Request[bool],
    op="rename file",
    route=Route("POST", "/sessions/{session}/rename", "Rename a file or a folder", within="done"),
):
    """Rename a file or a folder; a file of the new name is replaced.

    Attributes:
        session: The session.
        path: The file or folder.
        to: Its new path.
    """

    session: str
    path: str
    to: str


class WatchFiles(Request["Data[files.FileChange]"], op="watch files", repeatable=True):
    """Watch a folder as the session's own code sees it.

    Answered by one reply when the watch begins, and one for each change.

    Attributes:
        session: The session.
        path: The folder.
        recursive: Whether the folders below it are watched, too.
    """

    session: str
    path: str = "."
    recursive: bool = False


class RemoveFile(
    Request[bool],
    op="remove file",
    route=Route("DELETE", "/sessions/{session}/files/{path:file}", "Remove a file or a folder", within="done"),
):
    """Remove a file, a link, or an empty folder; with `recursive`, a folder and its contents."""

    session: str
    path: str
    recursive: bool = False


class Install(Request["Data[model.CodeExecutionResult]"], op="install"):
    """Install packages for a session. Answered by the result of pip (`CodeExecutionResult.to_dict`)."""

    session: str
    requirements: tuple[str, ...]
    timeout: int = 600_000
