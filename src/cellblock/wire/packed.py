"""JSON data that has bytes and long texts in it, as bytes: these lie beside the JSON, as they are.

A result can hold many megabytes of pictures and pages. In JSON, each would be base64 and escaped, which takes a hundred
milliseconds in which nothing else in the process runs.

The layout: the length of the JSON, as four bytes; the JSON; the values that were taken out, one behind the other. The JSON is
a list of the data, with null in place of each such value, and of what was taken out: its path, whether it is text, its length.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from cellblock.errors import ProtocolError

_LENGTH = struct.Struct("!I")
_LONG = 16 * 1024
"""Characters of a text that goes beside the JSON."""


class Packed(bytes):
    """Data that was packed before, in place of the data itself."""


_Taken = tuple[list[str | int], bool, int]

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def pack(data: Any) -> Packed:
    """Return JSON data, in which values can also be bytes, as bytes.

    Args:
        data: Dicts with texts as keys, lists, tuples, texts, numbers, booleans, None and bytes. Lone surrogates become ``?``.
    """
    if isinstance(data, Packed):
        return data
    taken: list[_Taken] = []
    values: list[bytes] = []
    rest = _without_large(data, [], taken, values)
    head = _encode([rest, taken]).encode("utf-8", "replace")
    return Packed(b"".join([_LENGTH.pack(len(head)), head, *values]))


def unpack(packed: bytes) -> Any:
    """Return the data that `pack` has packed.

    Raises:
        ProtocolError: It has not.
    """
    try:
        (length,) = _LENGTH.unpack_from(packed)
        data, taken = json.loads(packed[4 : 4 + length])
        start = 4 + length
        for path, text, size in taken:
            value = packed[start : start + size]
            start += size
            if len(value) != size:
                raise ProtocolError("packed data is too short")
            data = _with(data, path, value.decode() if text else value)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, struct.error) as error:
        raise ProtocolError(f"packed data is damaged: {error}") from None
    return data


def _without_large(
    value: Any, path: list[str | int], taken: list[tuple[list[str | int], bool, int]], values: list[bytes]
) -> Any:
    """Return data without what is large, which is put into `values`."""
    kind = type(value)
    if kind is str:
        if len(value) < _LONG:
            return value
        data = value.encode("utf-8", "replace")
    elif kind is bytes:
        data = value
    elif kind is dict:
        return {name: _without_large(inner, [*path, name], taken, values) for name, inner in value.items()}
    elif kind is list or kind is tuple:
        return [_without_large(inner, [*path, number], taken, values) for number, inner in enumerate(value)]
    else:
        return value
    taken.append((path, kind is str, len(data)))
    values.append(data)
    return None


def _with(data: Any, path: list[str | int], value: Any) -> Any:
    if not path:
        return value
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return data
