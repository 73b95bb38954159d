"""Limits on retained output."""

from __future__ import annotations

from dataclasses import dataclass, fields

from cellblock.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a cell's output is kept in memory.

    Attributes:
        text: Bytes of printed text: half from the beginning, half from the end.
        value: Bytes of one textual value. Larger plain text keeps its beginning and end.
        media: Bytes of one value of any other type, such as an image, HTML or JSON. A larger value is omitted.
        values: Memory of all values of a cell, in bytes. Text takes up to four bytes per character, as many as its widest
            character needs (an emoji: four).
        displays: Number of displayed values of a cell.
        queue: Bytes queued for the reader of `stream()` before the kernel waits.
        spill: Bytes of one cell's files in `spill_dir`.
        spilled: Bytes of a session's files in `spill_dir`. The oldest are removed.
        history: Memory of the results in a session's history and for `Session.export`, in bytes. The oldest are dropped.

    Raises:
        InvalidInputError: A limit is not a number, or is negative.
    """

    text: int = 2 * 1024 * 1024
    value: int = 8 * 1024 * 1024
    media: int = 24 * 1024 * 1024
    values: int = 32 * 1024 * 1024
    displays: int = 1000
    queue: int = 4 * 1024 * 1024
    spill: int = 256 * 1024 * 1024
    spilled: int = 1024 * 1024 * 1024
    history: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        for item in fields(self):
            value, least = getattr(self, item.name), 1 if item.name == "queue" else 0
            if type(value) is not int or value < least:
                raise InvalidInputError(f"{item.name} must be a whole number, at least {least}, not {value!r}")
