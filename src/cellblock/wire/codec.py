"""Converts immutable dataclasses to JSON data and back, by the types of their fields.

Decoding validates every value: a missing or unknown field, or a wrong type, is a `ProtocolError` that names the field. Fields
can be strings, booleans, 64-bit integers, `Literal`, ``X | None``, tuples, mappings with string keys, `Any` (JSON), and such
dataclasses. `Annotated` with `Most` limits them. The members of a union of dataclasses have a ``kind`` and plain fields, and
are encoded as lists: the kind, then the fields in order.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from cellblock.errors import ProtocolError

Convert = Callable[[Any], Any]

MAX_INTEGER = 2**63


class Most(NamedTuple):
    """The limit of a field, in `Annotated`: maximum integer (none is negative), characters, or number of items."""

    value: int


_encoders: dict[Any, Convert | None] = {}
_decoders: dict[Any, Convert] = {}


def encoder(hint: Any) -> Convert | None:
    """Return a function that converts a value of this type to JSON data; None if it is JSON data already."""
    if hint not in _encoders:
        _encoders[hint] = _make_encoder(hint)
    return _encoders[hint]


def _make_encoder(hint: Any) -> Convert | None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return encoder(arguments[0])
    if dataclasses.is_dataclass(hint):
        return _object_encoder(typing.cast("type", hint))
    if origin in (typing.Union, types.UnionType):
        members = [item for item in arguments if item is not type(None)]
        if len(members) > 1:
            return _kind_encoder(members)
        if (inner := encoder(members[0])) is not None:
            return functools.partial(_encode_optional, inner)
    elif origin is tuple and arguments[1:] == (...,):
        if (inner := encoder(arguments[0])) is not None:
            return functools.partial(_encode_list, inner)
    elif origin is Mapping:
        inner = encoder(arguments[1])
        return dict if inner is None else functools.partial(_encode_mapping, inner)
    return None


def _encode_optional(inner: Convert, value: Any) -> Any:
    return None if value is None else inner(value)


def _encode_list(inner: Convert, value: Any) -> list[Any]:
    return [inner(item) for item in value]


def _encode_mapping(inner: Convert, value: Any) -> dict[str, Any]:
    return {name: inner(item) for name, item in value.items()}


def _object_encoder(kind: type) -> Convert:
    fields = [(name, encoder(hint)) for name, hint in _fields(kind)]

    def encode(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) if convert is None else convert(getattr(value, name)) for name, convert in fields}

    return encode


def _kind_encoder(members: list[Any]) -> Convert:
    getters = {member: operator.attrgetter("kind", *(name for name, _ in _fields(member))) for member in members}
    return lambda value: getters[type(value)](value)


def decoder(hint: Any) -> Convert:
    """Return a function that converts JSON data to a value of this type, or raises `ProtocolError`."""
    if hint not in _decoders:
        _decoders[hint] = _make_decoder(hint)
    return _decoders[hint]


def _make_decoder(hint: Any) -> Convert:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint is int:
        return _integer
    if origin is Annotated:
        most = next((note.value for note in arguments[1:] if isinstance(note, Most)), None)
        return decoder(arguments[0]) if most is None else _limited(arguments[0], most)
    if hint in (str, bool):
        return _exactly(hint)
    if dataclasses.is_dataclass(hint):
        return _object_decoder(typing.cast("type", hint))
    if origin is Literal:
        return _one_of(arguments)
    if origin in (typing.Union, types.UnionType):
        members = [item for item in arguments if item is not type(None)]
        inner = decoder(members[0]) if len(members) == 1 else _kind_decoder(members)
        return (lambda value: None if value is None else inner(value)) if len(members) < len(arguments) else inner
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin is Mapping and arguments[0] is str:
        return _mapping_decoder(decoder(arguments[1]))
    raise TypeError(f"a message cannot have a field of the type {hint}")


def _exactly(kind: type) -> Convert:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise ProtocolError(f"must be {_NAMES[kind]}, not {type(value).__name__}")
        return value

    return check


_NAMES = {str: "a string", bool: "true or false"}


def _integer(value: Any) -> int:
    if type(value) is not int or not -MAX_INTEGER <= value < MAX_INTEGER:
        raise ProtocolError("must be an integer of 64 bits")
    return value


def _limited(hint: Any, most: int) -> Convert:
    if hint is int:

        def number(value: Any) -> int:
            if type(value) is not int or not 0 <= value <= most:
                raise ProtocolError(f"must be an integer from 0 to {most}")
            return value

        return number
    inner, what = decoder(hint), "characters" if hint is str else "items"

    def check(value: Any) -> Any:
        found = inner(value)
        if len(found) > most:
            raise ProtocolError(f"has {len(found)} {what}, over the limit of {most}")
        return found

    return check


def _one_of(values: tuple[Any, ...]) -> Convert:
    def check(value: Any) -> Any:
        if type(value) is not str or value not in values:
            raise ProtocolError(f"must be one of {', '.join(map(repr, values))}")
        return value

    return check


def _tuple_decoder(arguments: tuple[Any, ...]) -> Convert:
    if arguments[1:] == (...,):
        inner = decoder(arguments[0])

        def convert_all(value: Any) -> tuple[Any, ...]:
            if type(value) is not list:
                raise ProtocolError("must be a list")
            return tuple([inner(item) for item in value])

        return convert_all
    each = [decoder(argument) for argument in arguments]

    def convert(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(each):
            raise ProtocolError(f"must be a list of {len(each)}")
        return tuple([inner(item) for inner, item in zip(each, value, strict=True)])

    return convert


def _mapping_decoder(inner: Convert) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ProtocolError("must be an object")
        return {name: inner(item) for name, item in value.items()}

    return convert


def _object_decoder(kind: type) -> Convert:
    fields = [(name, decoder(hint), name in _required(kind)) for name, hint in _fields(kind)]

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise ProtocolError("must be an object")
        found = {}
        for name, convert, required in fields:
            if name in value:
                try:
                    found[name] = convert(value[name])
                except ProtocolError as error:
                    raise ProtocolError(f"{name}: {error}") from None
            elif required:
                raise ProtocolError(f"{name} is missing")
        if len(found) < len(value):
            raise ProtocolError(f"{next(name for name in value if name not in found)[:40]!a} is unknown")
        return kind(**found)

    return decode


def _kind_decoder(members: list[Any]) -> Convert:
    kinds = {member.kind: (member, [decoder(hint) for _, hint in _fields(member)]) for member in members}

    # Most values were decoded before: sessions share nearly all their steps, and forks inherit this cache.
    @functools.lru_cache(maxsize=1024, typed=True)
    def make(kind: Any, *values: Any) -> Any:
        if type(kind) is not str or kind not in kinds:
            raise ProtocolError(f"must be a list that begins with one of {', '.join(kinds)}")
        member, fields = kinds[kind]
        if len(values) != len(fields):
            raise ProtocolError(f"{kind} must have {len(fields)} fields")
        return member(*[convert(item) for convert, item in zip(fields, values, strict=True)])

    def decode(value: Any) -> Any:
        if type(value) is not list or not value:
            raise ProtocolError("must be a list that is not empty")
        try:
            return make(*value)
        except TypeError:  # an unhashable value
            raise ProtocolError("must be a list of texts, integers and booleans") from None

    return decode


def _fields(kind: type) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [(item.name, hints[item.name]) for item in dataclasses.fields(kind)]


def _required(kind: type) -> set[str]:
    missing = dataclasses.MISSING
    return {item.name for item in dataclasses.fields(kind) if item.default is missing and item.default_factory is missing}
