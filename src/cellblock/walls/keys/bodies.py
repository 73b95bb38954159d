"""Secrets in the bodies of requests: which ones, and how JSON and forms encode them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from cellblock.common.http_headers import Headers

MOST_REPLACED = 256 * 1024
"""Bytes of a body into which secrets are inserted."""
_FORM = b"application/x-www-form-urlencoded"


def inserts_at(at: str, secrets: Sequence[dict[str, Any]]) -> list[tuple[str, bytes, str]]:
    """Return the secrets that bodies for a host can contain: their names, placeholders and values.

    Args:
        at: The host as ``host:port``.
        secrets: The secrets of the session (`bindings.described`).
    """
    return [
        (secret["name"], secret["placeholder"].encode(), secret["value"])
        for secret in secrets
        if not secret["removed"] and any(use["body"] and at in use["hosts"] for use in secret["uses"])
    ]


def quoting(headers: Headers) -> Callable[[str], bytes] | None:
    """Return the function that encodes a secret for the type of a body; None for types without secrets."""
    if any(name.lower() == b"content-encoding" for name, _ in headers):
        return None
    types = [value.partition(b";")[0].strip().lower() for name, value in headers if name.lower() == b"content-type"]
    if len(types) != 1:
        return None
    if types[0] == _FORM:
        return lambda value: quote(value, safe="").encode()
    if types[0] == b"application/json" or types[0].endswith(b"+json"):
        return lambda value: json.dumps(value)[1:-1].encode()
    return None


def length_of(headers: Headers) -> int | None:
    """Return the declared length of a body: 0 without a body, and None if it is chunked."""
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        return None
    return next((int(value) for name, value in headers if name.lower() == b"content-length"), 0)


def with_length(headers: Headers, length: int) -> Headers:
    """Return the headers of a request whose whole body was read."""
    replaced = (b"content-length", b"transfer-encoding")
    return [*(one for one in headers if one[0].lower() not in replaced), (b"Content-Length", str(length).encode())]
