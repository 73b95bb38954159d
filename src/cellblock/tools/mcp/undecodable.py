"""Repairs text that was cut within a character, and finds the call of an answer that cannot be decoded.

Only that call fails, and at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellblock.tools.mcp.lines import Oversized, edges

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

# Where serialisers put the id of an answer. The text after it distinguishes answers from requests.
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID = rb'"id"\s*:\s*(\d{1,18})\s*'
_AT_HEAD = re.compile(
    rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb",\s*(?:" + _VERSION + rb",\s*)?" + rb'"(?:result|error)"'
)
_AT_TAIL = re.compile(_ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*$")
# Half of a surrogate pair as an escape (RFC 8259, section 8.2), which decoders refuse.
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def repaired(message: bytes) -> bytes:
    """Replace halves of characters by U+FFFD: servers cut texts by units of UTF-16, or by bytes.

    Args:
        message: A JSON message, small enough for the event loop.
    """
    try:
        message.decode()
    except UnicodeDecodeError:
        message = message.decode(errors="replace").encode()
    if b"\\ud" in message or b"\\uD" in message:
        # After two backslashes, "u" starts no escape.
        message = b"\\\\".join(_HALF.sub(rb"\\ufffd", part) for part in message.split(b"\\\\"))
    return message


def id_of(ends: Oversized) -> int | None:
    """Return the id of an answer if only its ends are known; None if it is not where serialisers put it."""
    if ends.head.lstrip()[:1] != b"{":
        return None
    found = _AT_HEAD.match(ends.head) or _AT_TAIL.search(ends.tail)
    return None if found is None else int(found[1])


def given_to(error: ValueError) -> bytes:
    """Return the message that pydantic could not decode, or its id; empty if the error has neither."""
    errors = getattr(error, "errors", None)
    given = errors()[0].get("input") if errors is not None else None
    if isinstance(given, dict) and isinstance(number := given.get("id"), int) and "method" not in given:
        return b'{"id":%d}' % number
    return given.encode("utf-8", "replace") if isinstance(given, str) else b""


def refusal(number: int, complaint: str) -> SessionMessage:
    """Return an error in place of an answer, for the call with this id."""
    from mcp.shared.message import SessionMessage
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError

    error = ErrorData(code=INTERNAL_ERROR, message=complaint)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))


def instead(message: bytes, error: ValueError) -> SessionMessage | None:
    """Return an error in place of a message that cannot be decoded; None if it does not look like an answer.

    Args:
        message: The message.
        error: The decoder's error.
    """
    number = id_of(edges(message))
    if number is None:
        return None
    reason = str(error).partition("[type=")[0].partition("\n")[2].strip() or str(error)
    return refusal(number, f"its answer cannot be decoded: {' '.join(reason.split())[:200]}")
