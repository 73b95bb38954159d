"""Limits and checks for the fields of messages, on both sides of the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cellblock.errors import ProtocolError
from cellblock.wire.frames import MAX_BODY, Frame

MAX_CODE = 4 * 1024 * 1024
"""Largest source of one cell, in bytes of UTF-8."""

PIECE = 256 * 1024
"""Most bytes of one `Stream` or `Part`: long text and large values travel in pieces."""

MAX_COMMAND = 1024 * 1024
"""Largest command, in bytes: its text, its program, its directory and the changes to its environment together."""

MAX_COMM = 2 * 1024 * 1024
"""Largest message between a widget and a Jupyter client, in bytes: its content and its buffers together."""

MAX_BUFFERS = 64
"""Most buffers of one such message."""

MAX_ERROR = 2 * 1024 * 1024
"""Largest error, in bytes: its message and its traceback together."""

MAX_ARGUMENTS = 256
"""Most arguments of one installation or program, and most changes to an environment."""

MAX_NAMES = 50
"""Most variables that are reported as changed, and as removed."""

MAX_MIMES = 64
"""Most MIME types in one bundle."""

MAX_TEXT = 4096
"""Longest string of a header field, in characters."""

MAX_NUMBER = 2**31 - 1
"""Largest integer of a header field; none is negative."""


class Fields:
    """Reads and checks the fields of one frame."""

    __slots__ = ("_header", "_type", "buffers")

    def __init__(self, frame: Frame) -> None:
        self._header = frame.header
        self._type = frame.header["type"]
        sizes = frame.header.get("sizes", [])
        if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size <= MAX_BODY for size in sizes):
            raise ProtocolError(f"{self._type}: sizes must be a list of lengths")
        if sum(sizes) != len(frame.body):
            raise ProtocolError(f"{self._type}: sizes add up to {sum(sizes)}, the body has {len(frame.body)}")
        if len(sizes) == 1:
            self.buffers = [frame.body]
            return
        self.buffers = []
        start = 0
        for size in sizes:
            self.buffers.append(frame.body[start : start + size])
            start += size

    def fail(self, name: str, want: str) -> ProtocolError:
        """Return the error for an invalid field."""
        return ProtocolError(f"{self._type}: {name} must be {want}")

    def boolean(self, name: str) -> bool:
        """Return true or false; missing is false."""
        value = self._header.get(name, False)
        if type(value) is not bool:
            raise self.fail(name, "true or false")
        return value

    def integer(self, name: str, most: int = MAX_NUMBER) -> int:
        """Return an integer in its range."""
        value = self._header.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise self.fail(name, f"an integer from 0 to {most}")
        return value

    def text(self, name: str, choices: tuple[str, ...] | None = None) -> Any:
        """Return a short string, or one of a choice."""
        value = self._header.get(name)
        if type(value) is not str or len(value) > MAX_TEXT or (choices and value not in choices):
            raise self.fail(name, f"one of {', '.join(choices)}" if choices else "a short string")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a short string, or None."""
        return None if self._header.get(name) is None else str(self.text(name))

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """Return a list of short strings; missing is empty."""
        value = self._header.get(name, [])
        if not isinstance(value, list) or len(value) > most:
            raise self.fail(name, f"a list of at most {most}")
        if not all(type(item) is str and len(item) <= MAX_TEXT for item in value):
            raise self.fail(name, "a list of short strings")
        return tuple(value)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object; missing is empty."""
        value = self._header.get(name, {})
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return value

    def buffer(self) -> bytes:
        """Return the only buffer."""
        if len(self.buffers) != 1:
            raise self.fail("sizes", "one length")
        return self.buffers[0]

    def piece(self) -> bytes:
        """Return the only buffer, if it is not too large for a piece."""
        data = self.buffer()
        if len(data) > PIECE:
            raise self.fail("sizes", f"at most {PIECE}")
        return data

    def code(self) -> str:
        """Return the only buffer as source code."""
        data = self.buffer()
        if len(data) > MAX_CODE:
            raise self.fail("code", f"at most {MAX_CODE} bytes")
        return to_text(data)

    def optional_buffer_text(self) -> str | None:
        """Return the only buffer as text, or None if there is none."""
        return to_text(self.buffer()) if self.buffers else None


def short(texts: Iterable[str]) -> list[str]:
    """Return strings for a header, checked: user code chooses MIME types and ids."""
    checked = list(texts)
    if len(checked) > MAX_MIMES or not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in checked):
        raise ProtocolError(
            f"MIME types and ids must be strings of at most {MAX_TEXT} characters, at most {MAX_MIMES} of them"
        )
    return checked


def arguments(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return arguments, or variables, if there are not too many."""
    if len(texts) > MAX_ARGUMENTS:
        raise ProtocolError(f"{len(texts)} arguments are over the limit of {MAX_ARGUMENTS}")
    return texts


def names_of(texts: tuple[str, ...]) -> list[bytes]:
    """Return names if there are not too many, each cut to its limit: user code chooses them."""
    if len(texts) > MAX_NAMES:
        raise ProtocolError(f"{len(texts)} names are over the limit of {MAX_NAMES}")
    return [to_bytes(text[:100]) for text in texts]


def few(buffers: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the buffers of a comm message, if there are not too many."""
    if len(buffers) > MAX_BUFFERS:
        raise ProtocolError(f"{len(buffers)} buffers are over the limit of {MAX_BUFFERS}")
    return buffers


def within(limit: int, buffers: Sequence[bytes]) -> list[bytes]:
    """Return buffers whose total size is within the limit."""
    if (size := sum(map(len, buffers))) > limit:
        raise ProtocolError(f"{size} bytes are over the limit of {limit}")
    return [*buffers]


def piece(data: bytes) -> bytes:
    """Return a piece that is not too large."""
    if len(data) > PIECE:
        raise ProtocolError(f"a piece of {len(data)} bytes is over the limit of {PIECE}")
    return data


def code(text: str) -> bytes:
    """Return source code that is not too large."""
    data = strictly(text)
    if len(data) > MAX_CODE:
        raise ProtocolError(f"code of {len(data)} bytes is over the limit of {MAX_CODE}")
    return data


def strictly(text: str) -> bytes:
    """Encode text that must arrive unchanged."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"the code is not UTF-8: {error}") from None


def to_bytes(text: str) -> bytes:
    """Encode text; characters that UTF-8 cannot encode are escaped."""
    return text.encode("utf-8", "backslashreplace")


def to_text(data: bytes) -> str:
    """Decode text; invalid UTF-8 is replaced."""
    return data.decode("utf-8", "replace")
