"""Messages of the Jupyter protocol, and their encoding on WebSockets."""

from __future__ import annotations

import base64
import itertools
import json
import secrets
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, TypeAlias

from cellblock.errors import InvalidInputError, ProtocolError
from cellblock.fronts.jupyter.large_json import CheckedJson
from cellblock.model import holds_json
from cellblock.model.untrusted import parse_json

VERSION = "5.3"
"""The implemented version of the Jupyter protocol."""

V1 = "v1.kernel.websocket.jupyter.org"
"""The WebSocket subprotocol in which every message is binary. Without it, messages are JSON unless they have buffers."""

Channel: TypeAlias = Literal["shell", "control", "stdin", "iopub"]

_MAX_ID = 512
_MAX_HEADER = 16 * 1024
_MAX_BUFFERS = 64
_PLACE = f"checked-{secrets.token_hex(16)}-"
"""Stands for `CheckedJson` while a message is encoded. No session knows it."""

APPROVAL = "cellblock.approval"
"""The key of a pending approval (`PendingApproval`) in a message's metadata."""

_CHANNELS = ("shell", "control", "stdin", "iopub")


@dataclass(frozen=True)
class Message:
    """A message.

    Attributes:
        channel: The channel.
        header: The header.
        parent: The header of the message that it answers; empty if none.
        content: The content.
        metadata: The metadata.
        buffers: The buffers.
    """

    channel: Channel
    header: Mapping[str, Any]
    parent: Mapping[str, Any]
    content: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    buffers: Sequence[bytes] = ()

    @property
    def id(self) -> str:
        """The message's id."""
        return str(self.header["msg_id"])

    @property
    def type(self) -> str:
        """The message's type."""
        return str(self.header["msg_type"])

    @cached_property
    def parts(self) -> list[bytes]:
        """Header, parent header, metadata and content, each as JSON."""
        return [_dump(part) for part in (self.header, self.parent, self.metadata, self.content)]

    @cached_property
    def plain(self) -> str | bytes:
        """The message for clients without a subprotocol."""
        header, parent, metadata, content = (part.decode() for part in self.parts)
        text = (
            f'{{"header":{header},"msg_id":{json.dumps(self.id)},"msg_type":{json.dumps(self.type)},"parent_header":{parent},'
            f'"metadata":{metadata},"content":{content},"channel":"{self.channel}","buffers":[]}}'
        )
        return _joined(">I", ">I", [text.encode(), *self.buffers]) if self.buffers else text

    @cached_property
    def v1(self) -> bytes:
        """The message in the subprotocol `V1`."""
        return _joined("<Q", "<Q", [self.channel.encode(), *self.parts, *self.buffers], end=True)

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return sum(map(len, self.parts)) + sum(map(len, self.buffers))


def make(
    channel: Channel,
    kind: str,
    content: Mapping[str, Any],
    parent: Mapping[str, Any],
    session: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    buffers: Sequence[bytes] = (),
) -> Message:
    """Create a kernel's message.

    Args:
        channel: The channel.
        kind: The message type.
        content: The content.
        parent: The header of the message that it answers.
        session: The id of the kernel's side of the conversation.
        metadata: The metadata.
        buffers: The buffers.
    """
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": kind,
        "username": "cellblock",
        "session": session,
        "date": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "version": VERSION,
    }
    return Message(channel, header, parent, content, metadata or {}, buffers)


def read_plain(data: str | bytes) -> Message:
    """Parse a message of a client without a subprotocol.

    Raises:
        ProtocolError: It is not a message.
    """
    buffers: list[bytes] = []
    if isinstance(data, bytes):
        first, *buffers = _split(">I", data)
        data = first
    said = _load(data)
    if not isinstance(said, dict):
        raise ProtocolError("a message must be a JSON object")
    parts = [said.get(name) for name in ("header", "parent_header", "metadata", "content")]
    return checked(said.get("channel", "shell"), parts, buffers)


def read_v1(data: str | bytes) -> Message:
    """Parse a message in the subprotocol `V1`.

    Raises:
        ProtocolError: It is not a message.
    """
    if isinstance(data, str):
        raise ProtocolError(f"messages of {V1} are binary")
    channel, *parts = _split("<Q", data, end=True)
    if len(parts) < 4:
        raise ProtocolError("a message has a channel and four parts")
    return checked(channel.decode("utf-8", "replace"), [_load(part) for part in parts[:4]], parts[4:])


def checked(channel: Any, parts: Sequence[Any], buffers: Sequence[bytes]) -> Message:
    """Validate the parts of a client's message, and return the message.

    Args:
        channel: The channel.
        parts: Header, parent header, metadata and content.
        buffers: The buffers.

    Raises:
        ProtocolError: The parts are invalid.
    """
    header, parent, metadata, content = (part if part is not None else {} for part in parts)
    if channel not in _CHANNELS:
        raise ProtocolError(f"a message must name one of the channels {', '.join(_CHANNELS)}")
    if not all(isinstance(part, dict) for part in (header, parent, metadata, content)):
        raise ProtocolError("header, parent_header, metadata and content must be JSON objects")
    if not all(type(header.get(name)) is str and 0 < len(header[name]) <= _MAX_ID for name in ("msg_id", "msg_type")):
        raise ProtocolError(f"msg_id and msg_type must be strings of at most {_MAX_ID} characters")
    if len(_dump(header)) > _MAX_HEADER:  # each message about a request repeats its header
        raise ProtocolError(f"a header has at most {_MAX_HEADER:,} bytes")
    if len(buffers) > _MAX_BUFFERS:
        raise ProtocolError(f"a message has at most {_MAX_BUFFERS} buffers")
    return Message(channel, header, parent, content, metadata, buffers)


def shown(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a MIME bundle in Jupyter's form: bytes in base64, and JSON parsed."""
    found: dict[str, Any] = {}
    for mime, value in data.items():
        if isinstance(value, CheckedJson):
            found[mime] = value
        elif isinstance(value, bytes):
            found[mime] = base64.b64encode(value).decode()
        elif holds_json(mime, value):
            try:
                found[mime] = parse_json(value, null_for_nan=True)
            except InvalidInputError:
                found[mime] = value
        else:
            found[mime] = value
    return found


def _dump(part: object) -> bytes:
    checked: list[bytes] = []

    def stand_in(value: object) -> str:
        if not isinstance(value, CheckedJson):
            raise TypeError(f"{type(value).__name__} is not JSON")
        checked.append(value.text)
        return f"{_PLACE}{len(checked) - 1}"

    # JSON escapes text that UTF-8 cannot encode. NaN is not JSON, so it is not sent.
    try:
        text = json.dumps(part, allow_nan=False, separators=(",", ":"), default=stand_in)
    except ValueError:
        checked.clear()
        text = json.dumps(parse_json(json.dumps(part, default=stand_in), null_for_nan=True), separators=(",", ":"))
    data = text.encode()
    for number, value in enumerate(checked):
        data = data.replace(f'"{_PLACE}{number}"'.encode(), value, 1)
    return data


def _load(data: str | bytes) -> Any:
    try:
        return parse_json(data, what="a message")
    except InvalidInputError as error:
        raise ProtocolError(str(error)) from None


def _joined(count: str, offset: str, pieces: Sequence[bytes], *, end: bool = False) -> bytes:
    """Join pieces after a table of their offsets; with `end`, the table also has the end of the last one."""
    number = len(pieces) + end
    place = struct.calcsize(count) + number * struct.calcsize(offset)
    places = []
    for piece in [*pieces, b""][:number]:
        places.append(place)
        place += len(piece)
    return struct.pack(f"{count}{number}{offset[1]}", number, *places) + b"".join(pieces)


def _split(form: str, data: bytes, *, end: bool = False) -> list[bytes]:
    """Split the result of `_joined`."""
    size = struct.calcsize(form)
    most = 1 + 4 + _MAX_BUFFERS + end
    if len(data) < size or not 1 <= (number := struct.unpack_from(form, data)[0]) <= most or len(data) < size * (number + 1):
        raise ProtocolError("a binary message begins with a table of its parts")
    places = [*struct.unpack_from(f"{form[0]}{number}{form[1]}", data, size)]
    if not end:
        places.append(len(data))
    if places != sorted(places) or places[0] < size * (number + 1) or places[-1] > len(data):
        raise ProtocolError("the parts of a binary message must follow each other within it")
    return [data[start:stop] for start, stop in itertools.pairwise(places)]
