"""Inserts secrets into the head and the body of a request, only at declared places, without I/O."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from cellblock.common.http_headers import Headers
from cellblock.walls.egress.rules import RefusedError
from cellblock.walls.egress.scan import forms
from cellblock.walls.keys.sigv4 import Signing, covers, take_signature

MOST_REPLACED = 256 * 1024
"""Bytes of a body into which secrets are inserted."""
_FORM = b"application/x-www-form-urlencoded"
_MARKED = re.compile(rb"cellblock([0-9A-Za-z]{20,})")
_BASIC = re.compile(r"basic +([A-Za-z0-9+/=_-]+) *", re.IGNORECASE)


@dataclass(slots=True)
class Filled:
    """The head of a request with secrets.

    Attributes:
        names: The names of the secrets that it contains.
        replacements: What the response may not contain (`scan.forms`).
        signing: The signature to make of the complete head (`sigv4.sign`).
    """

    target: bytes
    headers: Headers
    names: list[str] = field(default_factory=list)
    replacements: list[tuple[bytes, bytes]] = field(default_factory=list)
    signing: Signing | None = None


def fill(target: bytes, headers: Headers, at: str, secrets: Sequence[dict[str, Any]]) -> Filled:
    """Insert the secrets of a host into a request.

    Args:
        target: The target of the request: path and query.
        headers: The headers, with canonical lower-case names.
        at: The host as ``host:port``.
        secrets: The secrets of the session (`bindings.described`).

    Raises:
        RefusedError: A placeholder is left.
    """
    head = Filled(target, list(headers))
    for secret in secrets:
        for use in secret["uses"]:
            if covers(use["hosts"], at):
                if use["sigv4"] and not secret["removed"]:
                    signing = take_signature(head.headers, secret["placeholder"], secret["value"], at)
                    head.names += [] if signing is None else [secret["name"]]
                    head.signing = signing or head.signing
                pair = "" if secret["removed"] else _fill_one(head, secret, use)
                if use["responses"] == "scan":
                    # Not only if it is in this request: the host may return what an earlier one contained.
                    for value in (secret["value"], *secret["former"]):
                        head.replacements += forms(value, secret["placeholder"], pair or use["basic"])
    for secret in secrets:
        if secret["removed"] and _contains(head, secret["placeholder"].encode()):
            raise RefusedError(403, f"the secret {secret['name']} was removed from this session")
    # After the replacement: what is left has no right to be here. A value never matches, because it was checked.
    _check_left(head)
    return head


def has_placeholder(texts: Sequence[bytes]) -> bool:
    """Return whether a text contains a placeholder, perhaps percent-encoded or in Basic authentication."""
    return any(
        _is_in(text)
        or (b"%" in text and _is_in(unquote_to_bytes(text)))
        or (text[:5].lower() == b"basic" and _is_in((_opened(text) or "").encode()))
        for text in texts
    )


def _is_in(text: bytes) -> bool:
    """Return whether a text contains a placeholder, of this or another session: a long word with a digit and a capital."""
    return any(not word.isalpha() and word != word.lower() for word in _MARKED.findall(text))


def _contains(head: Filled, placeholder: bytes) -> bool:
    return placeholder in head.target or any(placeholder in content for _, content in head.headers)


def _fill_one(head: Filled, secret: dict[str, Any], use: dict[str, Any]) -> str:
    """Insert one secret. Return the form of Basic authentication that was inserted, if any."""
    placeholder, value = secret["placeholder"], secret["value"]
    pair, found = "", False
    for index, (name, content) in enumerate(head.headers):
        for form in use["header"]:
            wanted, _, shape = form.partition(":")
            if name.lower() == wanted.strip().lower().encode() and _same(content, shape.strip(), placeholder):
                # The client's own spelling of the scheme stays.
                head.headers[index], found = (name, content.replace(placeholder.encode(), value.encode())), True
        if use["basic"] and name.lower() == b"authorization" and (opened := _opened(content)) is not None:
            user, colon, password = opened.partition(":")
            if placeholder in (user, password) and colon:
                pair = ":".join("{}" if part == placeholder else part for part in (user, password))
                head.headers[index], found = (name, _basic(pair.replace("{}", value))), True
    path, mark, query = head.target.decode("ascii").partition("?")
    if use["query"] and mark:
        fields = query.split("&")
        for index, one in enumerate(fields):
            if one == f"{use['query']}={placeholder}":
                fields[index], found = f"{use['query']}={quote(value, safe='')}", True
        query = "&".join(fields)
    if use["path"]:
        segments = path.split("/")
        for index, segment in enumerate(segments):
            if segment == use["path"].replace("{}", placeholder):
                segments[index], found = use["path"].replace("{}", quote(value, safe=":")), True
        path = "/".join(segments)
    head.target = f"{path}{mark}{query}".encode("ascii")
    if use["attach"] and not found:
        pair, found = _attach(head, use, value)
    if found:
        head.names.append(secret["name"])
    return pair


def _attach(head: Filled, use: dict[str, Any], value: str) -> tuple[str, bool]:
    """Add the first header, or Basic authentication, if the request has none of that name."""
    name, _, form = use["header"][0].partition(":") if use["header"] else ("Authorization", "", "")
    if any(given.lower() == name.strip().lower().encode() for given, _ in head.headers):
        return "", False
    if use["header"]:
        head.headers.append((name.strip().encode(), form.strip().replace("{}", value).encode()))
        return "", True
    if use["basic"]:
        head.headers.append((b"Authorization", _basic(use["basic"].replace("{}", value))))
        return use["basic"], True
    return "", False


def _same(content: bytes, shape: str, placeholder: str) -> bool:
    """Return whether a header has the declared form. The words before the secret are compared without case."""
    before, _, after = shape.partition("{}")
    text = content.decode("latin-1")
    cut = len(before)
    return text[:cut].lower() == before.lower() and text[cut:] == placeholder + after


def _basic(pair: str) -> bytes:
    return b"Basic " + base64.b64encode(pair.encode())


def _opened(content: bytes) -> str | None:
    if content[:5].lower() != b"basic" or (match := _BASIC.fullmatch(content.decode("latin-1"))) is None:
        return None
    try:
        return base64.b64decode(match[1], altchars=b"-_" if set(match[1]) & {"-", "_"} else None).decode()
    except (binascii.Error, ValueError):
        return None


def _check_left(head: Filled) -> None:
    if has_placeholder([head.target]):
        raise RefusedError(403, "the URL contains a placeholder that is not for this host and place")
    for name, content in head.headers:
        if has_placeholder([content]):
            raise RefusedError(
                403,
                f"the header {name.decode('ascii')} contains a placeholder that is not for this host and place: read the "
                "variable again, and send it only as the session's secrets say",
            )


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


def length_of(headers: Headers) -> int:
    """Return the declared length of a body; 0 without one, also if it is chunked."""
    return next((int(value) for name, value in headers if name.lower() == b"content-length"), 0)


def with_length(headers: Headers, length: int) -> Headers:
    """Return the headers of a request whose whole body was read."""
    replaced = (b"content-length", b"transfer-encoding")
    return [*(one for one in headers if one[0].lower() not in replaced), (b"Content-Length", str(length).encode())]
