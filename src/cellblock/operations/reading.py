"""Reads a file of a session part by part, without I/O: the caller sends the request of `next`, and passes the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellblock.errors import FilesError
from cellblock.operations.files import ReadPart

_PART = 4 * 1024 * 1024


class FileReading:
    """A reader of one file, which must not change meanwhile.

    Attributes:
        offset: The number of bytes read.
        size: The size of the file; None until the first part has arrived.
    """

    def __init__(self, session: str, path: str) -> None:
        self._session, self._path = session, path
        self._known: Mapping[str, Any] | None = None
        self.offset = 0
        self.size: int | None = None

    @property
    def next(self) -> ReadPart | None:
        """The next request; None at the end of the file."""
        if self.size is not None and self.offset >= self.size:
            return None
        return ReadPart(self._session, self._path, self.offset, _PART)

    def take(self, answer: Mapping[str, Any]) -> bytes:
        """Handle an answer; return the part of the file.

        Raises:
            FilesError: The file has changed since the first part.
        """
        known = self._known = self._known or answer["file"]
        self.size = known["size"]
        data: bytes = answer["data"]
        if answer["file"] != known or (not data and self.offset < known["size"]):
            raise FilesError(f"{self._path!r} changed while it was read: try again", path=self._path)
        self.offset += len(data)
        return data
