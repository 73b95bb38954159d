"""What clients ask about the files and packages of a session."""

from __future__ import annotations

from typing import ClassVar

from cellblock.wire.record import record

MAX_REQUEST = 64 * 1024 * 1024
"""Bytes of the body of a request: code, or a part of a file."""


@record
class ListFiles:
    """List a folder of a session's workspace. Answered by a list of `FileInfo` as JSON data."""

    op: ClassVar[str] = "list files"
    session: str
    path: str = "."
    recursive: bool = False


@record
class ReadFile:
    """Read a file. Answered by raw bytes."""

    op: ClassVar[str] = "read file"
    session: str
    path: str
    max_bytes: int = MAX_REQUEST


@record
class WriteFile:
    """Write the body to a file. Answered by a `FileInfo` as JSON data."""

    op: ClassVar[str] = "write file"
    session: str
    path: str


@record
class ReadPart:
    """Read a part of a file. Answered by ``file``, a `FileInfo` as JSON data, and ``data``, the bytes.

    Attributes:
        session: The session.
        path: The file.
        offset: Where the part begins; at or beyond the end, it is empty.
        count: How many bytes to read at most.
    """

    op: ClassVar[str] = "read part"
    session: str
    path: str
    offset: int = 0
    count: int = 4 * 1024 * 1024


@record
class WritePart:
    """Write a file in parts, which are the bodies. Answered by null until its end, then by a `FileInfo` as JSON data.

    Attributes:
        session: The session.
        path: The file. It appears when it is complete.
        upload: Identifies the upload: any text that no other upload has, the same for all of its parts.
        more: Whether there are more parts to come. If none comes for a minute, the upload is given up.
        abort: Whether it is given up now.
    """

    op: ClassVar[str] = "write part"
    session: str
    path: str
    upload: str
    more: bool = True
    abort: bool = False


@record
class RemoveFile:
    """Remove a file, or a folder with all that is in it if `recursive` says so. Answered by true."""

    op: ClassVar[str] = "remove file"
    session: str
    path: str
    recursive: bool = False


@record
class Install:
    """Install packages for a session. Answered by the result of pip (`CodeExecutionResult.to_dict`)."""

    op: ClassVar[str] = "install"
    session: str
    requirements: tuple[str, ...]
    timeout: int = 600_000
