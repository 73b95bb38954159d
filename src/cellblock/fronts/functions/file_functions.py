"""Files of named sessions.

A path is relative to the workspace. An absolute path outside the workspace names a file as the session's own code sees it,
and is accessed with that code's rights.
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
        kernel: The session's record, name or id.
        path: The folder.
        recursive: Whether to include the contents of subfolders.

    Raises:
        NotFoundError: The session does not exist.
        FilesError: The path is not a folder, or cannot be read.
    """
    return ask(ListFiles(session_of(kernel), path, recursive))


def file_info(kernel: SessionRecord | str, path: str) -> FileInfo:
    """Describe a file, a folder, or anything else of a session.

    Raises:
        NotFoundError: The session does not exist.
        FilesError: Nothing exists at this path.
    """
    return ask(StatFile(session_of(kernel), path))


def read_file(kernel: SessionRecord | str, path: str) -> bytes:
    """Return the content of a file of a session.

    Raises:
        NotFoundError: The session does not exist.
        FilesError: The file cannot be read, or changed meanwhile.
    """
    reading, parts = FileReading(session_of(kernel), path), []
    while (request := reading.next) is not None:
        parts.append(reading.take(call(request)))
    return b"".join(parts)


def write_file(kernel: SessionRecord | str, path: str, data: bytes | str) -> FileInfo:
    """Write a file of a session atomically. Missing parent folders are created.

    Args:
        kernel: The session's record, name or id.
        path: The file. An existing file is replaced.
        data: The content; text is encoded as UTF-8.

    Raises:
        NotFoundError: The session does not exist.
        FilesError: The file cannot be written.
    """
    if not isinstance(data, bytes | str):
        raise InvalidInputError(f"data must be bytes or text, not {type(data).__name__}")
    from cellblock.model.files import FileInfo

    content, session, upload = data.encode() if isinstance(data, str) else data, session_of(kernel), secrets.token_hex(16)
    try:
        for start in range(0, len(content), _PART):
            call(WritePart(session, path, upload), content[start : start + _PART])
        written = call(WritePart(session, path, upload, more=False))
    except BaseException:  # also Ctrl-C: received parts are dropped
        with suppress(CellblockError):
            call(WritePart(session, path, upload, abort=True))
        raise
    assert written is not None, "a complete file has a description"
    return FileInfo.from_dict(written)


def make_folder(kernel: SessionRecord | str, path: str) -> None:
    """Create a folder of a session, and missing parent folders. An existing folder is no error.

    Raises:
        NotFoundError: The session does not exist.
        FilesError: The folder cannot be created.
    """
    ask(MakeFolder(session_of(kernel), path))


def rename_file(kernel: SessionRecord | str, path: str, to: str) -> None:
    """Rename a file or a folder of a session. An existing file with the new name is replaced.

    Raises:
        NotFoundError: The session does not exist.
        FilesError: The file cannot be renamed.
    """
    ask(RenameFile(session_of(kernel), path, to))


def remove_file(kernel: SessionRecord | str, path: str, *, recursive: bool = False) -> None:
    """Remove a file of a session, an empty folder, or a folder with its content if `recursive` is set.

    Raises:
        NotFoundError: The session does not exist.
        FilesError: Nothing exists at this path, or it cannot be removed.
    """
    ask(RemoveFile(session_of(kernel), path, recursive))
