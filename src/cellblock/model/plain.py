"""Conversion between immutable data and JSON data, by the types of fields.

Fields can be JSON values, paths, paths or URLs, tuples, lists, mappings with string keys, such data again, and any of these or
None. Nothing is validated, because this reads what this package wrote. `wire.codec` reads untrusted data.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self


class Plain:
    """A base class of dataclasses with JSON conversion."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the object as JSON data."""
        return as_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create an object from the data of `to_dict`."""
        made: Self = _converters(cls)[1](data)
        return made


def as_dict(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON data."""
    data: dict[str, Any] = _converters(type(value))[0](value)
    return data


def reader(kind: type) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that creates a dataclass from its JSON data. Missing fields get their defaults."""
    return getattr(kind, "from_dict", None) or _converters(kind)[1]


def fields_of(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, except fields that are excluded from comparison."""
    hints = typing.get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind) if item.compare}


_Convert = Callable[[Any], Any]
_known: dict[type, tuple[_Convert, _Convert]] = {}


def _converters(kind: type) -> tuple[_Convert, _Convert]:
    """Return a writer and a reader of a dataclass."""
    if kind not in _known:
        _known[kind] = _written(kind), _read(kind)
    return _known[kind]


def _converter(hint: Any, *, write: bool) -> _Convert | None:
    """Return a writer or reader for values of a type; None if they are JSON data already."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Path:
        return str if write else Path
    if hint == Path | str:
        return str if write else _path_or_url
    if dataclasses.is_dataclass(hint):
        own = getattr(hint, "to_dict" if write else "from_dict", None)
        return own or _converters(typing.cast("type", hint))[0 if write else 1]
    if origin in (typing.Union, types.UnionType):
        (one,) = (argument for argument in arguments if argument is not type(None))
        inner = _converter(one, write=write)
        return inner and functools.partial(_unless_none, inner)
    if origin in (list, tuple):
        return functools.partial(_all, list if write else origin, _converter(arguments[0], write=write))
    if origin is Mapping:
        return dict if write else None
    return None


def _path_or_url(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def _unless_none(inner: _Convert, value: Any) -> Any:
    return None if value is None else inner(value)


def _all(kind: Callable[[Any], Any], inner: _Convert | None, values: Any) -> Any:
    return kind(values if inner is None else map(inner, values))


def _written(kind: type) -> _Convert:
    fields = [(name, _converter(hint, write=True)) for name, hint in fields_of(kind).items()]
    return lambda value: {
        name: getattr(value, name) if convert is None else convert(getattr(value, name)) for name, convert in fields
    }


def _read(kind: type) -> _Convert:
    fields = {name: _converter(hint, write=False) for name, hint in fields_of(kind).items()}

    def read(data: Mapping[str, Any]) -> Any:
        return kind(**{name: value if (convert := fields[name]) is None else convert(value) for name, value in data.items()})

    return read
