"""Decodes large text without blocking the event loop."""

from __future__ import annotations

import codecs
import sys

from cellblock.host.files.steps import PIECE, Work


def decode(data: bytes, encoding: str) -> Work[str]:
    """Decode piece by piece: a single call would hold the GIL, and so block the event loop, to its end."""
    if len(data) <= PIECE:
        yield None
        return data.decode(encoding)
    "".encode(encoding)  # LookupError also for codecs that are not text encodings
    decoder = codecs.getincrementaldecoder(_of_unmarked(data, encoding))()
    pieces = []
    for start in range(0, len(data), PIECE):
        waiting = len(decoder.getstate()[0])
        try:
            pieces.append(decoder.decode(data[start : start + PIECE], start + PIECE >= len(data)))
        except UnicodeDecodeError as error:
            error.start += start - waiting  # its position in the file
            raise
        yield None
    return "".join(pieces)


def _of_unmarked(data: bytes, encoding: str) -> str:
    """Return the encoding, with a byte order for UTF-16 and UTF-32 without a BOM, which incremental decoders reject."""
    name = codecs.lookup(encoding).name
    marks = {"utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)}
    if name not in marks or data.startswith(marks[name]):
        return encoding
    return f"{name}-{'le' if sys.byteorder == 'little' else 'be'}"
