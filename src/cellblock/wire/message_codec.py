"""Converts messages to frames (`encode`) and back (`decode`), by the types of their fields.

Fields with a `Body` are encoded as bytes in the body of the frame, in order, with their lengths in the header. All others are
JSON in the header. Trailing body fields with default values are omitted. Both sides check the type and the limit of every
field: messages of a worker are untrusted, and a kernel ends if its host refuses one.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, cast

from cellblock.errors import ProtocolError
from cellblock.wire.codec import Convert, Most, decoder
from cellblock.wire.fields import Body, Number, Short, to_bytes, to_text
from cellblock.wire.frames import MAX_BODY, Frame, encode_frame
from cellblock.wire.messages import Message, ToHost, ToWorker

_NONE = dataclasses.MISSING


class _Head(NamedTuple):
    """A field in the header."""

    name: str
    check: Convert
    default: Any


class _Part(NamedTuple):
    """A field in the body."""

    name: str
    body: Body
    shape: Any  # bytes, str, tuple or Mapping
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    default: Any
    counted: _Head | None  # the header field with their number


class _Plan(NamedTuple):
    """The encoding of a message type."""

    kind: type
    names: tuple[str, ...]
    get: Callable[[Any], tuple[Any, ...]]  # the type and the fields of the header
    heads: tuple[_Head, ...]
    chosen: tuple[_Head, ...]  # those that code in the session can choose, so that the sender checks them, too
    parts: tuple[_Part, ...]
    most: int


_plans: dict[type, _Plan] = {}
_named: dict[str, _Plan] = {}


def encode(message: Message) -> bytes:
    """Encode a message as a frame.

    Raises:
        ProtocolError: The other side would not accept it.
    """
    plan = _plans.get(type(message)) or _plan(type(message))
    header = dict(zip(plan.names, plan.get(message), strict=False))
    for head in plan.chosen:
        value = header[head.name]
        _checked(message.type, head, [*value] if type(value) is tuple else value)
    buffers: list[bytes] = []
    for part in _sent(message, plan.parts):
        value = getattr(message, part.name)
        if part.shape is bytes or part.shape is str:
            data = part.write(value)
            if len(data) > part.body.most:
                _check_sizes(message.type, part, [data])
            buffers.append(data)
            continue
        if part.shape is tuple:
            written = [part.write(item) for item in value]
            if part.counted is not None:
                header[part.name] = _checked(message.type, part.counted, len(value))
            elif part.body.like and len(value) != len(getattr(message, part.body.like)):
                raise ProtocolError(f"{message.type}: {part.name} must be as many as {part.body.like}")
        else:
            written = [part.write(item) for item in value.values()]
            header[part.body.keys] = [*value]
            _checked(message.type, cast("_Head", part.counted), [*value])
        _check_sizes(message.type, part, written)
        buffers += written
    if not buffers:
        return encode_frame(header)
    header["sizes"] = sizes = [len(buffer) for buffer in buffers]
    _check_total(message.type, sum(sizes), plan.most)
    return encode_frame(header, buffers[0] if len(buffers) == 1 else b"".join(buffers))


def _sent(message: Message, parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
    """Return the fields of the body without trailing defaults."""
    while parts and (default := parts[-1].default) is not _NONE and getattr(message, parts[-1].name) == default:
        parts = parts[:-1]
    return parts


def _checked(kind: str, head: _Head, data: Any) -> Any:
    try:
        return head.check(data)
    except ProtocolError as error:
        raise ProtocolError(f"{kind}: {head.name} {error}") from None


def _check_sizes(kind: str, part: _Part, buffers: list[bytes]) -> None:
    body = part.body
    if len(buffers) > body.items:
        raise ProtocolError(f"{kind}: {part.name} has {len(buffers)} items, over the limit of {body.items}")
    for buffer in buffers:
        if len(buffer) > body.most:
            raise ProtocolError(f"{kind}: {part.name} has {len(buffer)} bytes, over the limit of {body.most}")


def _check_total(kind: str, size: int, most: int) -> None:
    if size > most:
        raise ProtocolError(f"{kind}: {size} bytes are over the limit of {most}")


def decode(frame: Frame) -> Message:
    """Decode the message of a frame.

    Raises:
        ProtocolError: The type is unknown, or a field is missing, of the wrong type or above its limit.
    """
    header = frame.header
    kind = header["type"]
    if (plan := _named.get(kind) or _plan_named(kind)) is None:
        raise ProtocolError(f"unknown message type {kind[:40]!r}")
    values: dict[str, Any] = {}
    name = ""
    try:
        for name, check, default in plan.heads:
            value = header.get(name, _NONE)
            if value is not _NONE:
                values[name] = check(value)
            elif default is _NONE:
                raise ProtocolError("is missing")
    except ProtocolError as error:
        raise ProtocolError(f"{kind}: {name} {error}") from None
    if plan.parts or frame.body or "sizes" in header:
        _read_body(plan, frame, values)
    return cast("Message", plan.kind(**values))


def _read_body(plan: _Plan, frame: Frame, values: dict[str, Any]) -> None:
    kind = frame.header["type"]
    buffers = _cut(frame, plan.most)
    start = 0
    for part in plan.parts:
        end = start + _count(frame.header, part, values, len(buffers) - start)
        if end > len(buffers):
            raise ProtocolError(f"{kind}: sizes must have more lengths, for {part.name}")
        is_sent = end > start or part.default is _NONE
        values[part.name] = _read(kind, part, buffers[start:end], frame.header) if is_sent else part.default
        start = end
    if start < len(buffers):
        raise ProtocolError(f"{kind}: sizes has {len(buffers) - start} more than there are fields")


def _cut(frame: Frame, most: int) -> list[bytes]:
    """Split the body by the sizes in the header."""
    kind, sizes, body = frame.header["type"], frame.header.get("sizes", []), frame.body
    if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size <= MAX_BODY for size in sizes):
        raise ProtocolError(f"{kind}: sizes must be a list of lengths")
    if sum(sizes) != len(body):
        raise ProtocolError(f"{kind}: sizes add up to {sum(sizes)}, the body has {len(body)}")
    _check_total(kind, len(body), most)
    if len(sizes) == 1:
        return [body]
    buffers, start = [], 0
    for size in sizes:
        buffers.append(body[start : start + size])
        start += size
    return buffers


def _count(header: dict[str, Any], part: _Part, values: dict[str, Any], left: int) -> int:
    """Return the number of buffers of a field."""
    if part.shape is bytes or part.shape is str:
        return 1 if left or part.default is _NONE else 0
    if part.shape is Mapping:
        counted = cast("_Head", part.counted)
        keys = _checked(header["type"], counted, header.get(counted.name, []))
        if len({*keys}) != len(keys) or len(keys) != left:
            raise ProtocolError(f"{header['type']}: {counted.name} must be distinct, one for each buffer")
        return left
    if part.counted is not None:
        return int(_checked(header["type"], part.counted, header.get(part.name, 0)))
    return len(values[part.body.like]) if part.body.like else left


def _read(kind: str, part: _Part, buffers: list[bytes], header: dict[str, Any]) -> Any:
    _check_sizes(kind, part, buffers)
    try:
        if part.shape is bytes or part.shape is str:
            return part.read(buffers[0])
        found = (*map(part.read, buffers),)
    except UnicodeDecodeError:
        raise ProtocolError(f"{kind}: {part.name} must be UTF-8") from None
    return found if part.shape is tuple else dict(zip(header.get(part.body.keys, ()), found, strict=True))


def _plan_named(kind: str) -> _Plan | None:
    """Return the encoding of a message type; None if the type is unknown."""
    for message in (*typing.get_args(ToWorker), *typing.get_args(ToHost)):
        if message.type == kind:
            _named[kind] = _plan(message)
    return _named.get(kind)


def _plan(kind: type) -> _Plan:
    """Compute the encoding of a message type, on first use."""
    hints = typing.get_type_hints(kind, include_extras=True)
    heads, parts = [], []
    for item in dataclasses.fields(kind):
        hint, default = hints[item.name], item.default if item.default_factory is _NONE else item.default_factory()
        body = next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Body)), None)
        if body is not None:
            parts.append((item.name, typing.get_args(hint)[0], body, default))
            continue
        heads.append(_Head(item.name, decoder(hint), default))
    last = len(parts) - 1
    made = tuple(_part(*part, is_last=number == last) for number, part in enumerate(parts))
    names = ("type", *(head.name for head in heads))
    chosen = tuple(head for head in heads if hints[head.name] not in (bool, Number) and not _is_literal(hints[head.name]))
    get = operator.attrgetter(*names, "type")  # with a single name, it would not be a tuple
    _plans[kind] = plan = _Plan(kind, names, get, (*heads,), chosen, made, getattr(kind, "most", MAX_BODY))
    return plan


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is Literal


def _part(name: str, hint: Any, body: Body, default: Any, *, is_last: bool) -> _Part:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in arguments:
        hint, default = arguments[0], None
    item = {tuple: arguments[:1], Mapping: arguments[1:]}.get(origin, (hint,))[0]
    counted = None
    if origin is Mapping:
        counted = _Head(body.keys, decoder(Annotated[tuple[Short, ...], Most(body.items)]), _NONE)
    elif origin is tuple and not is_last and not body.like:
        counted = _Head(name, decoder(Annotated[int, Most(body.items)]), 0)
    shape = origin if origin in (tuple, Mapping) else item
    if item is bytes:
        return _Part(name, body, shape, bytes, bytes, default, counted)
    if body.strict:
        return _Part(name, body, shape, functools.partial(_strictly, name), bytes.decode, default, counted)
    return _Part(name, body, shape, to_bytes, to_text, default, counted)


def _strictly(name: str, text: str) -> bytes:
    """Encode text that must arrive unchanged."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"the {name} is not UTF-8: {error}") from None
