"""Describes the variables of a session: type, size, shape, and a short text.

Nothing here calls a method that the session's code defined: a `__repr__` could take forever, or change something.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from cellblock.model.variables import MAX_SURVEY
from cellblock.wire.values.optional import type_name
from cellblock.worker.values.digests import digest

_TEXT = 80
_NAME = 200
_SAMPLE = 1000
_ITEMS = 5
_IPYTHONS = re.compile(r"_(_{0,2}|i{1,3}|i?\d+|oh|ih|dh|exit_code)|In|Out|__\w+__")
"""Names that IPython defines in every session."""

_SCALARS = (bool, int, float, complex, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset)


def names(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> list[str]:
    """Return the names that the session's code defined, in the order of their definition.

    Args:
        namespace: All names of the session.
        hidden: Names that IPython defined, with their values.
    """
    missing = object()
    return [
        name
        for name, value in [*namespace.items()]
        if type(name) is str and not _IPYTHONS.fullmatch(name) and hidden.get(name, missing) is not value
    ]


def survey(namespace: Mapping[str, Any], hidden: Mapping[str, Any], seconds: float | None) -> bytes:
    """Return all variables as JSON, for `model.variables.read_survey`.

    Args:
        namespace: All names of the session.
        hidden: Names that IPython defined, with their values.
        seconds: Time limit for all digests of values together; None for a survey without digests.
    """
    until = None if seconds is None else time.monotonic() + seconds
    found = names(namespace, hidden)
    rows: list[str] = []
    room = MAX_SURVEY - 100
    for name in found:
        value = namespace.get(name)  # a thread of the code may have deleted it by now
        told = None if until is None else digest(value, until)
        row = json.dumps([name[:_NAME], *_described(value), told], separators=(",", ":"))
        room -= len(row) + 1
        if room < 0:
            break
        rows.append(row)
    return f'{{"variables":[{",".join(rows)}],"left_out":{len(found) - len(rows)}}}'.encode()


def _described(value: Any) -> tuple[str, int | None, list[int] | None, str]:
    try:
        return type_name(value)[:_NAME], _size(value), _shape(value), _preview(value)[: 2 * _TEXT]
    except Exception:  # a half-initialised object of a library, or a type whose name is not a string
        return type(value).__name__[:_NAME], None, None, ""


def _library(value: object) -> str:
    """Return the library that defines a value's type."""
    return type(value).__module__.partition(".")[0]


def _size(value: Any) -> int | None:
    match _library(value):
        case "numpy" | "pyarrow" | "scipy" | "torch" if hasattr(value, "nbytes"):
            return int(value.nbytes)
        case "pandas" if hasattr(value, "memory_usage"):
            used = value.memory_usage()
            return int(used if isinstance(used, int) else used.sum())
        case "polars" if hasattr(value, "estimated_size"):
            return int(value.estimated_size())
    if type(value) in _CONTAINERS:
        sizes = [sys.getsizeof(item) if type(item) in (*_SCALARS, str, bytes) else 64 for item in _first(value, _SAMPLE)]
        return sys.getsizeof(value) + (sum(sizes) * len(value) // len(sizes) if sizes else 0)
    return sys.getsizeof(value) if type(value) in (*_SCALARS, str, bytes, bytearray) else None


def _first(container: Any, count: int) -> Iterator[Any]:
    """Yield the first items of a container; for a dict, keys and values."""
    for number, item in enumerate(container):
        if number == count:
            return
        yield item
        if type(container) is dict:
            yield container[item]


def _shape(value: Any) -> list[int] | None:
    if type(value) in (*_CONTAINERS, str, bytes, bytearray):
        return [len(value)]
    if _library(value) in ("numpy", "pandas", "polars", "pyarrow", "scipy", "torch"):
        shape = getattr(value, "shape", None)
        return None if shape is None or issubclass(type(value), type) else [int(length) for length in shape]
    return None


def _preview(value: Any, depth: int = 1) -> str:
    kind: type = type(value)
    if kind in (str, bytes, bytearray):
        return repr(value[:_TEXT]) + ("…" if len(value) > _TEXT else "")
    if kind is int and value.bit_length() > 8 * _TEXT:
        return f"an integer of {value.bit_length():,} bits"  # Python refuses to write very large ones
    if kind in _SCALARS:
        return repr(value)
    if kind in _CONTAINERS:
        return _items(value, depth)
    if issubclass(kind, ModuleType):
        return f"module {ModuleType.__getattribute__(value, '__name__')}"
    if kind is FunctionType:
        return f"def {value.__name__}({', '.join(value.__code__.co_varnames[: value.__code__.co_argcount])})"
    if issubclass(kind, type):
        return f"class {type.__getattribute__(value, '__name__')}"
    if _library(value) in ("numpy", "torch") and hasattr(value, "dtype"):
        return str(value.dtype)
    if _library(value) in ("pandas", "polars") and hasattr(value, "columns"):
        return ", ".join(name if type(name) is str else type_name(name) for name in _first(value.columns, _ITEMS))
    return f"<{type_name(value)}>"


def _items(value: Any, depth: int) -> str:
    """Return the first items of a container as text."""
    left, right = "[]" if type(value) is list else "()" if type(value) is tuple else "{}"
    if not depth:
        return f"{left}…{right}" if value else left + right
    shown = [_preview(item, depth - 1)[:_TEXT] for item in _first(value, _ITEMS)]
    if type(value) is dict:
        shown = [f"{key}: {item}" for key, item in zip(shown[::2], shown[1::2], strict=True)]
    return left + ", ".join([*shown, *(["…"] if len(value) > _ITEMS else [])]) + right
