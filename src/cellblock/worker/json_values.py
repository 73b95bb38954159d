"""Converts JSON-like data of libraries to valid JSON.

It may contain NumPy numbers, sets, generators and NaN, which are invalid. The result matches Jupyter's kernels, so
that JavaScript can read it.
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

_DEEPEST = 200
"""Maximum nesting; deeper values become text."""


def encode_json(value: object) -> bytes:
    """Encode a value as JSON in UTF-8."""
    try:
        return json.dumps(value, allow_nan=False).encode()  # usually it is JSON already
    except (TypeError, ValueError, RecursionError):
        return json.dumps(plain_json(value)).encode()


def plain_json(value: object, depth: int = 0) -> Any:
    """Convert a value to plain JSON data: dicts, lists, strings, numbers, true, false and null."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= _DEEPEST:
        return str(value)
    if isinstance(value, Mapping):
        return {_key(name): plain_json(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binascii.b2a_base64(bytes(value), newline=False).decode()
    for method in ("tolist", "isoformat"):  # of NumPy numbers and arrays, and of dates
        if callable(convert := getattr(value, method, None)) and not isinstance(value, type):
            return plain_json(convert(), depth + 1)
    if isinstance(value, Iterable):
        return [plain_json(item, depth + 1) for item in value]
    return str(value)


def _key(name: object) -> str:
    """Return a key for a JSON object, which must be a string."""
    if isinstance(name, str):
        return str(name)
    if name is None or isinstance(name, (bool, int, float)):
        return str(json.dumps(name))
    return str(name)
