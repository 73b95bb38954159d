"""A streaming parser for the files in a body of ``multipart/form-data``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from cellblock.errors import InvalidInputError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FILES = 1000
_MAX_BOUNDARY = 70  # RFC 2046, section 5.1.1
_MAX_HEADERS = 16 * 1024
"""Bytes of the headers of one part."""


class Part:
    """A piece of a part.

    Attributes:
        name: The name of the field.
        filename: The name of the file; empty if the part is not a file.
        data: The next bytes.
        last: Whether this is the last piece of the part.
    """

    __slots__ = ("data", "filename", "last", "name")

    def __init__(self, name: str, filename: str, data: bytes, *, last: bool) -> None:
        self.name, self.filename, self.data, self.last = name, filename, data, last


class Parts:
    """A parser of one body."""

    def __init__(self, content_type: str) -> None:
        """Set up for a body.

        Args:
            content_type: The ``Content-Type``.

        Raises:
            InvalidInputError: It is a different type, or names no boundary.
        """
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 0 < len(boundary) <= _MAX_BOUNDARY:
            raise InvalidInputError(
                "the Content-Type must be multipart/form-data, with a boundary, or application/octet-stream"
            )
        self._found: list[Part] = []
        self._count = 0
        self._field = self._value = b""
        self._headers = 0
        self._name = self._filename = ""
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_part_data": self._on_data,
            "on_part_end": self._on_end,
            "on_end": self._on_body_end,
        }
        self._parser = MultipartParser(boundary, callbacks)
        self._complete = False

    async def read(self, body: AsyncIterator[bytes]) -> AsyncIterator[Part]:
        """Yield the pieces of the parts, one part after the other.

        Raises:
            InvalidInputError: The body is malformed or incomplete.
        """
        async for data in body:
            for part in self.take(data):
                yield part
        if not self._complete:
            raise InvalidInputError("the body ends before its last boundary")

    def take(self, data: bytes) -> Iterator[Part]:
        """Yield the pieces in the next bytes."""
        try:
            self._parser.write(data)
        except FormParserError as wrong:
            raise InvalidInputError(f"the body is not valid multipart/form-data: {str(wrong)[:200]}") from None
        found, self._found = self._found, []
        yield from found

    def _begin(self) -> None:
        self._count += 1
        if self._count > MAX_FILES:
            raise InvalidInputError(f"a body can have {MAX_FILES} files")
        self._field = self._value = b""
        self._headers = 0
        self._name = self._filename = ""

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += self._counted(data[start:end])

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._counted(data[start:end])

    def _counted(self, data: bytes) -> bytes:
        self._headers += len(data)
        if self._headers > _MAX_HEADERS:
            raise InvalidInputError("the headers of a part are too long")
        return data

    def _on_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            self._filename = options.get(b"filename", b"").decode("utf-8", "replace")
        self._field = self._value = b""

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._found.append(Part(self._name, self._filename, data[start:end], last=False))

    def _on_end(self) -> None:
        self._found.append(Part(self._name, self._filename, b"", last=True))

    def _on_body_end(self) -> None:
        self._complete = True
