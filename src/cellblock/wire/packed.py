"""Packs JSON data with bytes and long texts, which are stored unencoded next to the JSON.

A result can contain many megabytes of images and pages. In JSON, each would be escaped or in base64, which takes a hundred
milliseconds and blocks the process.

The layout: the length of the JSON, as four bytes; the JSON; the extracted values, one after another. The JSON is a list of the
data, with null in place of each extracted value, and of the extracted values: path, whether it is text, length, and a list of
its other paths. The text of a result is at four.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from cellblock.errors import ProtocolError

_LENGTH = struct.Struct("!I")
_LONG = 16 * 1024
"""Minimum characters of a text that is stored beside the JSON."""


class Packed(bytes):
    """Data that is already packed."""


_Taken = tuple[list[str | int], bool, int, list[list[str | int]]]
_Path = tuple[Any, str | int] | None
"""The path of a value: its container's path, and its key there."""
_SMALL = frozenset((bool, float, int, type(None)))

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def pack(data: Any) -> Packed:
    """Pack JSON data, in which values can also be bytes.

    Args:
        data: Dicts with string keys, lists, tuples, strings, numbers, booleans, None and bytes. Lone surrogates become ``?``.
    """
    if isinstance(data, Packed):
        return data
    taken: dict[int, _Taken] = {}  # by the identity of the value
    values: list[bytes] = []
    rest = _without_large(data, None, taken, values)
    head = _encode([rest, [*taken.values()]]).encode("utf-8", "replace")
    return Packed(b"".join([_LENGTH.pack(len(head)), head, *values]))


def encode_item(data: Any) -> bytes:
    """Encode JSON data without bytes as an item for `pack_items`."""
    return _encode(data).encode("utf-8", "replace")


def pack_items(items: Iterable[bytes]) -> Packed:
    """Pack a list of items that were encoded one by one, because encoding all at once may take long."""
    head = b"[[%s],[]]" % b",".join(items)
    return Packed(_LENGTH.pack(len(head)) + head)


def unpack(packed: bytes) -> Any:
    """Unpack data of `pack`.

    Raises:
        ProtocolError: The data is invalid.
    """
    try:
        (length,) = _LENGTH.unpack_from(packed)
        data, taken = json.loads(packed[4 : 4 + length])
        start = 4 + length
        for path, text, size, *others in taken:  # data of earlier versions has no others
            value: Any = packed[start : start + size]
            start += size
            if len(value) != size:
                raise ProtocolError("packed data is too short")
            value = value.decode() if text else value
            for place in (path, *(others[0] if others else ())):
                data = _with(data, place, value)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, struct.error) as error:
        raise ProtocolError(f"packed data is damaged: {error}") from None
    return data


def plain_json(packed: Packed) -> bytes | None:
    """Return the unparsed JSON of packed data if it has no extracted values; else None."""
    nothing_beside = int.from_bytes(packed[:4]) == len(packed) - 4
    return packed[5:-4] if nothing_beside and packed.endswith(b",[]]") else None


def _without_large(value: Any, path: _Path, taken: dict[int, _Taken], values: list[bytes]) -> Any:
    """Return data without large values, which are added to `values`. Parts without large values are not copied."""
    kind = type(value)
    if kind is str or kind is bytes:
        return _take(value, path, taken, values)
    if kind is not dict and kind is not list and kind is not tuple:
        return value
    made: Any = None
    for key, inner in value.items() if kind is dict else enumerate(value):
        kind_of_inner = type(inner)
        if kind_of_inner in _SMALL or (kind_of_inner is str and len(inner) < _LONG):
            continue
        other = _without_large(inner, (path, key), taken, values)
        if other is not inner:
            if made is None:
                made = dict(value) if kind is dict else list(value)
            made[key] = other
    return value if made is None else made


def _take(value: str | bytes, path: _Path, taken: dict[int, _Taken], values: list[bytes]) -> str | None:
    if isinstance(value, str) and len(value) < _LONG:
        return value
    keys: list[str | int] = []
    while path is not None:
        path, key = path
        keys.append(key)
    keys.reverse()
    if (known := taken.get(id(value))) is not None:
        known[3].append(keys)
        return None
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    taken[id(value)] = (keys, isinstance(value, str), len(data), [])
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
