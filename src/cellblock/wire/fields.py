"""Limits for the fields of messages, and marks for fields in the body of a frame."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

from cellblock.wire.codec import Most
from cellblock.wire.frames import MAX_BODY

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


class Body(NamedTuple):
    """A mark of a field in the body of a frame, as bytes, in `Annotated`.

    Attributes:
        most: Maximum size in bytes, of the field or of each of its items.
        items: Maximum number of items, for a tuple or a mapping.
        strict: Whether text must be UTF-8. Otherwise, characters that UTF-8 cannot encode are escaped, and invalid UTF-8 is
            replaced.
        like: The field with the same number of items.
        keys: The header field with the keys of a mapping.
    """

    most: int = MAX_BODY
    items: int = MAX_BODY
    strict: bool = False
    like: str = ""
    keys: str = ""


Number: TypeAlias = Annotated[int, Most(MAX_NUMBER)]
Short: TypeAlias = Annotated[str, Most(MAX_TEXT)]
Shorts: TypeAlias = Annotated[tuple[Short, ...], Most(MAX_MIMES)]
Code: TypeAlias = Annotated[str, Body(MAX_CODE, strict=True)]
Text: TypeAlias = Annotated[str, Body()]
OptionalText: TypeAlias = Annotated[str | None, Body()]
Piece: TypeAlias = Annotated[bytes, Body(PIECE)]
Arguments: TypeAlias = Annotated[tuple[str, ...], Body(items=MAX_ARGUMENTS)]


def to_bytes(text: str) -> bytes:
    """Encode text. Characters that UTF-8 cannot encode are escaped."""
    return text.encode("utf-8", "backslashreplace")


def to_text(data: bytes) -> str:
    """Decode text. Invalid UTF-8 is replaced."""
    return data.decode("utf-8", "replace")
