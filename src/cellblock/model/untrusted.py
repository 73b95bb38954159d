"""Parses untrusted JSON of sessions, servers and clients within limits.

Python's parsers hold the GIL until they are done. The limits therefore apply to their input: bytes, values and nesting.
`tests/test_readers.py` lists all other parsers, and why their input is limited or trusted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.model import holds_json

MAX_VALUES = 40_000
"""Maximum values of JSON that is parsed at once. Parsing and encoding this many takes less than 50 ms."""

MAX_DEPTH = 100
"""Maximum nesting of JSON: parsers, here or in an MCP server, may have no limit but their stack."""

MAX_DIGITS = 4300
"""Maximum digits of an integer. Python has the same limit, which its environment can lift; conversion takes quadratic time."""

VALUE_WEIGHT = 64
"""Bytes that each value counts when memory is estimated: an empty list has 56."""

_BYTES_PER_VALUE = 16
"""Bytes outside strings that count as one value: converting a number of many digits takes as long as converting several."""

_ESCAPES_PER_VALUE = 20
_LONG = 64 * 1024
_BOM = "\ufeff"


class JsonCounter:
    """Counts the values of JSON that arrives in pieces, without parsing it.

    It counts strings, and commas and opening brackets outside strings. Long numbers and many escapes count as several values,
    because they take as long. The count of bytes that are not JSON is arbitrary.
    """

    __slots__ = ("_bytes", "_escapes", "_escaping", "_outside", "_quotes")

    def __init__(self) -> None:
        self._quotes = 0
        self._outside = 0
        self._bytes = 0
        self._escapes = 0
        self._escaping = b""

    def feed(self, piece: bytes) -> int:
        """Add the next piece. Return the number of values so far."""
        if self._escaping or b"\\" in piece:
            self._escapes += piece.count(b"\\")
            piece = (self._escaping + piece).replace(b"\\\\", b"")
            self._escaping = b"\\" if piece.endswith(b"\\") else b""
            piece = piece.removesuffix(b"\\").replace(b'\\"', b"")
        in_string = self._quotes % 2
        self._quotes += piece.count(b'"')
        if self._quotes <= 2 * MAX_VALUES:  # beyond that, the result is known, and there would be many parts
            for outside in piece.split(b'"')[in_string::2]:
                self._outside += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
                self._bytes += len(outside)
        return self._outside + self._quotes // 2 + self._bytes // _BYTES_PER_VALUE + self._escapes // _ESCAPES_PER_VALUE


def count_values(data: bytes | str) -> int:
    """Count the values of JSON, as `JsonCounter` does."""
    return JsonCounter().feed(data.encode("utf-8", "replace") if isinstance(data, str) else data)


def has_too_many_values(data: bytes | str) -> bool:
    """Return whether JSON has more values than may be parsed at once."""
    return len(data) > MAX_VALUES and count_values(data) > MAX_VALUES


def large_json(bundle: Mapping[str, str | bytes]) -> list[str]:
    """Return the MIME types to remove from a bundle, so that its JSON can be parsed at once."""
    found, left = [], MAX_VALUES
    for mime, value in bundle.items():
        if isinstance(value, str) and holds_json(mime, value):
            if (count := count_values(value)) > left:
                found.append(mime)
            else:
                left -= count
    return found


def parse_json(
    data: bytes | str, *, what: str = "JSON", most: int = 0, counted: bool = False, null_for_nan: bool = False
) -> Any:
    """Parse untrusted JSON.

    It must be valid by RFC 8259, in UTF-8 and without NaN. No object may have a key twice, because readers differ in which one
    counts. Escaped lone surrogates stay in strings: callers choose their encoding.

    Args:
        data: The JSON.
        what: Its name in messages, such as ``the body``.
        most: Maximum number of bytes or characters; 0 if the caller has limited them.
        counted: Whether the caller counted the values with a `JsonCounter` on arrival.
        null_for_nan: Whether NaN and infinities, which Python's encoder writes, become None.

    Raises:
        InvalidInputError: It is invalid, or exceeds a limit, which the message names.
    """
    if most and len(data) > most:
        raise InvalidInputError(f"{what} has more than {most:,} bytes")
    if not counted and has_too_many_values(data):
        raise InvalidInputError(f"{what} has more than {MAX_VALUES:,} values (long numbers and escapes count as several)")
    try:
        text = data.decode() if isinstance(data, bytes) else data
        value = (_LENIENT if null_for_nan else _STRICT).decode(text.removeprefix(_BOM))
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{what} is not UTF-8 text: byte {error.start} is wrong") from None
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError as error:
        raise InvalidInputError(f"{what} is not valid JSON: {str(error)[:200]}") from None
    # Nesting needs brackets: with few of them, the usual case, there is nothing to check. Counting takes long in a long text.
    few = len(text) < _LONG and text.count("[") + text.count("{") <= MAX_DEPTH
    if not few and _is_deeper(value, MAX_DEPTH):
        raise _too_deep(what)
    return value


def _too_deep(what: str) -> InvalidInputError:
    return InvalidInputError(f"{what} is nested deeper than {MAX_DEPTH} levels")


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [item for item in level if isinstance(item, (dict, list))]
        if not level:
            return False
        level = [item for parent in level for item in (parent.values() if isinstance(parent, dict) else parent)]
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = sorted(name for name, _ in pairs)
        twice = next(one for one, other in pairwise(names) if one == other)
        raise ValueError(f"the key {twice[:100]!r} occurs twice")
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer has more than {MAX_DIGITS} digits")
    return int(text)


def _number(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _number_or_none(text: str) -> float | None:
    return None if math.isinf(value := float(text)) else value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_refuse)
_LENIENT = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_number_or_none,
    parse_constant=lambda _: None,
)
