"""The limits of kept output."""

from __future__ import annotations

from dataclasses import dataclass, fields

from cellblock.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a cell's output is kept in memory.

    Attributes:
        text: Bytes of printed text: half from the beginning, half from the end.
        value: Bytes of one textual value. Of larger plain text, the beginning and the end are kept.
        media: Bytes of one value of any other type: a picture, HTML, JSON. A larger one is left out.
        values: Bytes of memory that all values of a cell take. Text takes up to four bytes per character: as many as its
            widest character needs (an emoji: four).
        displays: Number of displayed values of a cell.
        queue: Bytes that may be queued for the reader of `stream()` before the kernel has to wait.
        spill: Bytes that the files of one cell may take in `spill_dir`.
        spilled: Bytes that the files of a session may take there. The oldest are removed.
        history: Bytes of memory for the results that a session keeps for its history and for `Session.export`. The oldest are
            dropped.

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
