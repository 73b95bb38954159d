"""The encoding of requests and answers as frames."""

from __future__ import annotations

import json
from typing import Any

from cellblock.common import telemetry
from cellblock.errors import CellblockError, DaemonError, InvalidInputError, ProtocolError, named
from cellblock.operations import OPERATIONS
from cellblock.operations.base import MAX_REQUEST, Request
from cellblock.wire.codec import decoder, encoder
from cellblock.wire.frames import MAX_HEADER, Frame, encode_frame, encode_head
from cellblock.wire.packed import Packed, pack

MAX_FIELDS = 4 * 1024 * 1024
"""Bytes of the fields of a request without a body, such as a session's options with a lock of many packages."""

MAX_REPLY = 512 * 1024 * 1024
"""Bytes of the body of a reply: a result with all that `Limits` lets a cell show, in base64."""

PIECE = 256 * 1024
"""Bytes of an answer that are given to the socket at once: what it cannot take is copied."""

REFUSED = object()
"""The answer of a daemon that is ending. The request was not accepted: retry with the next daemon."""
UNREADABLE = 0
"""The number in the answer to a request that the daemon could not read; it then closes the connection. Requests begin at 1."""


def encode_request(number: int, request: Request[Any], body: bytes = b"") -> bytes:
    """Encode a request as a frame. Fields that are too large for its header become the body of a request without one.

    Raises:
        InvalidInputError: The request is too large, too deeply nested, or contains text that JSON lacks, such as a lone
            surrogate.
    """
    convert = encoder(type(request))
    assert convert is not None
    header = {"type": request.op, "id": number, "fields": convert(request)}
    if trace := telemetry.outgoing():
        header["trace"] = trace
    try:
        try:
            return encode_frame(header, body, max_body=MAX_REQUEST)
        except ProtocolError:
            if body or len(fields := _encoded(header["fields"])) < MAX_HEADER // 2:
                raise
            return encode_frame(header | {"fields": None}, fields, max_body=MAX_FIELDS)
    except ProtocolError as error:  # the caller set these fields
        raise InvalidInputError(f"the request {request.op!r} cannot be sent: {error}") from None


def _encoded(fields: dict[str, Any]) -> bytes:
    """Return fields as JSON, or empty bytes if they are not JSON.

    Raises:
        ProtocolError: The other side would not parse them.
    """
    from cellblock.model.untrusted import MAX_VALUES, has_too_many_values  # clients that send little start without it

    try:
        text = json.dumps(fields, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return b""
    if has_too_many_values(text):
        raise ProtocolError(f"its fields have more than {MAX_VALUES:,} values")
    return text


def decode_request(frame: Frame) -> tuple[int, Request[Any], bytes]:
    """Decode a request; return its number, the request and its body.

    Raises:
        ProtocolError: The frame is not a request, or a field is invalid.
    """
    kind = OPERATIONS.get(frame.header["type"])
    number = frame.header.get("id")
    if type(number) is not int:
        raise ProtocolError("a request needs an id, an integer")
    if kind is None:
        raise ProtocolError(f"{frame.header['type'][:40]!a} is not a request that the daemon knows")
    fields, body = frame.header.get("fields"), frame.body
    try:
        if fields is None and body:
            from cellblock.model.untrusted import parse_json

            fields, body = parse_json(body, what="the fields", most=MAX_FIELDS), b""
        request: Request[Any] = decoder(kind)(fields)
    except (ProtocolError, InvalidInputError) as error:
        raise ProtocolError(f"the request {kind.op!r} is wrong: {error}") from None
    return number, request, body


def encode_reply(number: int, answer: Any, *, more: bool = False) -> tuple[bytes, bytes]:
    """Encode an answer as a frame: JSON data that can contain bytes, or only bytes.

    Returns:
        The frame, and empty bytes. For a body too large to copy: the frame without the body, and the body.
    """
    raw = isinstance(answer, bytes) and not isinstance(answer, Packed)
    body = answer if raw else pack(answer)
    head = encode_head({"type": "reply", "id": number, "more": more, "raw": raw}, len(body), MAX_REPLY)
    return (head, body) if len(body) > PIECE else (head + body, b"")


def encode_error(number: int, error: CellblockError) -> bytes:
    """Encode an error as a frame."""
    header = {"type": "error", "id": number, "error": type(error).__name__, "details": error.details()}
    return encode_frame(header, str(error)[:60_000].encode("utf-8", "replace"))


def encode_refusal(number: int) -> bytes:
    """Encode a refusal as a frame: the daemon is ending and has not started the request."""
    return encode_frame({"type": "refused", "id": number})


def unreadable(answer: Any) -> DaemonError:
    """Return the error for a client whose request the daemon could not read, for example because the daemon is older."""
    return DaemonError(
        f"the daemon cannot read a request ({answer}): if cellblock was updated since it started, "
        "'cellblock daemon stop' ends it and its sessions, and the next command starts a new one"
    )


def decode_answer(frame: Frame) -> tuple[int, Any, bool]:
    """Decode an answer; return the request's number, the answer, and whether more parts follow.

    JSON data stays packed.

    Raises:
        ProtocolError: The frame is not an answer.
    """
    match frame.header:
        case {"type": "reply", "id": int(number), "more": bool(more), "raw": bool(raw)}:
            return number, frame.body if raw else Packed(frame.body), more
        case {"type": "error", "id": int(number), "error": str(name), "details": dict(details)}:
            return number, named(name).remade(frame.body.decode("utf-8", "replace"), details), False
        case {"type": "refused", "id": int(number)}:
            return number, REFUSED, False
    raise ProtocolError(f"{frame.header['type'][:40]!a} is not an answer of the daemon")
