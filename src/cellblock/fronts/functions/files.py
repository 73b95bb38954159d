"""Files of named sessions.

A path is relative to the workspace. An absolute one that is not in the workspace names a file as the session's own code sees
it, which works with it by its own rights.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.functions.connection import ask, call
from cellblock.operations.data import session_of
from cellblock.operations.files import ListFiles, MakeFolder, RemoveFile, RenameFile, StatFile, WritePart
from cellblock.operations.reading import FileReading

if TYPE_CHECKING:
    from cellblock.model.files import FileInfo
    from cellblock.model.sessions import SessionRecord

_PART = 4 * 1024 * 1024


def list_files(kernel: SessionRecord | str, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
    """List a folder of a session.

    Args:
        kernel: The session, its name or its id.
        path: The folder.
        recursive: Whether to list the contents of its folders, too.

    Raises:
        NotFoundError: There is no such session.
        FilesError: It is not a folder, or cannot be read.
    """
    return ask(ListFiles(session_of(kernel), path, recursive))


def file_info(kernel: SessionRecord | str, path: str) -> FileInfo:
    """Describe a file, a folder, or anything else of a session.

    Raises:
        NotFoundError: There is no such session.
        FilesError: There is nothing at this path.
    """
    return ask(StatFile(session_of(kernel), path))


def read_file(kernel: SessionRecord | str, path: str) -> bytes:
    """Return the content of a file of a session.

    Raises:
        NotFoundError: There is no such session.
        FilesError: It cannot be read, or changed meanwhile.
    """
    reading, parts = FileReading(session_of(kernel), path), []
    while (request := reading.next) is not None:
        parts.append(reading.take(call(request)))
    return b"".join(parts)


def write_file(kernel: SessionRecord | str, path: str, data: bytes | str) -> FileInfo:
    """Write a file of a session, whole or not at all. Missing folders above it are made.

    Args:
        kernel: The session, its name or its id.
        path: The file. One that exists is replaced.
        data: Its content; text is written as UTF-8.

    Raises:
        NotFoundError: There is no such session.
        FilesError: It cannot be written.
    """
    if not isinstance(data, bytes | str):
        raise InvalidInputError(f"data must be bytes or text, not {type(data).__name__}")
    from cellblock.model.files import FileInfo

    content, session, upload = data.encode() if isinstance(data, str) else data, session_of(kernel), secrets.token_hex(16)
    try:
        for start in range(0, len(content), _PART):
            call(WritePart(session, path, upload), content[start : start + _PART])
        written = call(WritePart(session, path, upload, more=False))
    except BaseException:  # also Ctrl-C: what has come is dropped
        with suppress(CellblockError):
            call(WritePart(session, path, upload, abort=True))
        raise
    assert written is not None, "a complete file has a description"
    return FileInfo.from_dict(written)


def make_folder(kernel: SessionRecord | str, path: str) -> None:
    """Make a folder of a session, and those above it. One that exists is fine.

    Raises:
        NotFoundError: There is no such session.
        FilesError: It cannot be made.
    """
    ask(MakeFolder(session_of(kernel), path))


def rename_file(kernel: SessionRecord | str, path: str, to: str) -> None:
    """Give a file or a folder of a session another name. A file of that name is replaced.

    Raises:
        NotFoundError: There is no such session.
        FilesError: It cannot be renamed.
    """
    ask(RenameFile(session_of(kernel), path, to))


def remove_file(kernel: SessionRecord | str, path: str, *, recursive: bool = False) -> None:
    """Remove a file of a session, an empty folder, or a folder with all that is in it if `recursive` says so.

    Raises:
        NotFoundError: There is no such session.
        FilesError: There is nothing at this path, or it cannot be removed.
    """
    ask(RemoveFile(session_of(kernel), path, recursive))
