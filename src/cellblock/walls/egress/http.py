"""Checks and rewrites HTTP heads for the proxy: pure functions on h11's events.

h11 reads and writes the messages, so no message reaches a server byte for byte as a client sent it. This module refuses
messages that h11 would repair, because a message with ambiguous framing must not be forwarded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

import h11

import cellblock.common.linear_h11  # noqa: F401  # h11 takes quadratic time otherwise
from cellblock.common.http_headers import Headers, end_to_end
from cellblock.walls.egress.names import (
    BadNameError,
    BadTargetError,
    Host,
    Target,
    canonical_host,
    host_text,
    parse_authority,
    split_port,
)
from cellblock.walls.egress.rules import RefusedError

# Without retries, which would take quadratic time.
_ABSOLUTE = re.compile(r"http://([^/?#]*+)([^#]*+)", re.IGNORECASE | re.DOTALL)
_HTTP_PORT = 80
MAX_LINES = 500
"""Lines of a request's or a response's head."""
CHUNKED_READ = 4096
"""Bytes of a chunked body that are read at a time, so that little is parsed at once, even if all of it is trailers."""
_HEAD_END = re.compile(rb"\n\r?\n")
_FOLDED = re.compile(rb"\n[ \t]")
_FINAL = "X-Should-Retry: false\r\n"
TO_WEBSOCKET: Headers = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
"""The headers for one hop of a request for a WebSocket, and of its answer."""
_OVERRIDES = frozenset(
    b"x-http-method-override x-http-method x-method-override x-original-url x-original-uri x-rewrite-url".split()
)


class BadRequestError(RefusedError):
    """A request that no proxy should forward. The message says why."""

    def __init__(self, text: str) -> None:
        super().__init__(400, f"bad request: {text}")


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A valid request to a proxy.

    Attributes:
        method: Its method.
        target: Its destination.
        forwarded: The request to send there; None for CONNECT.
    """

    method: str
    target: Target
    forwarded: h11.Request | None


def read_request(request: h11.Request) -> ProxyRequest:
    """Interpret the head of a request.

    Args:
        request: The head, as read by h11.

    Returns:
        Its destination, and the request to send there.

    Raises:
        BadTargetError: The host has no canonical form.
        BadRequestError: The request is not for a proxy, or is ambiguous.
    """
    method, text = request.method.decode("ascii"), request.target.decode("ascii")
    check_framing(request)
    if method == "CONNECT":
        target = _authority(text, None)
        _check_host(request, target)
        return ProxyRequest(method, target, None)
    match = _ABSOLUTE.fullmatch(text)
    if match is None:
        raise BadRequestError(_not_for_a_proxy(text))
    target = _authority(match[1], _HTTP_PORT)
    _check_host(request, target)
    path = match[2] or ("*" if method == "OPTIONS" else "/")
    path = f"/{path}" if path.startswith("?") else path
    host = str(target) if target.port != _HTTP_PORT else host_text(target.host)
    # Neither Via nor Forwarded: the server learns nothing about the machine of its client.
    # One connection for each request: no response can count for another request.
    headers = [(b"Host", host.encode("ascii")), *request_headers(request, request.headers), (b"Connection", b"close")]
    return ProxyRequest(method, target, h11.Request(method=request.method, target=path, headers=headers))


def request_headers(request: h11.Request, lowered: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the end-to-end headers of a request, without the host.

    Args:
        request: The request.
        lowered: Its headers, with names in lower case.
    """
    headers = [(name, value) for name, value in end_to_end(request.headers.raw_items()) if name.lower() != b"host"]
    if _values(lowered, b"transfer-encoding"):
        headers.append((b"Transfer-Encoding", b"chunked"))  # the only one that h11 accepts
    return headers


def response_headers(response: h11.Response | h11.InformationalResponse) -> Headers:
    """Return the headers of a response for the client. h11 adds the framing headers."""
    headers = end_to_end(response.headers.raw_items())
    if _values(response.headers, b"transfer-encoding"):
        headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return headers


def without_overrides(headers: Headers) -> Headers:
    """Return headers without those by which servers replace the method or the path, also if spelled with underscores."""
    return [(name, value) for name, value in headers if name.lower().replace(b"_", b"-") not in _OVERRIDES]


def wants_json(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a client accepts JSON by name."""
    return any(b"json" in value.lower() for value in _values(headers, b"accept"))


def plain_response(
    status: int, reason: str, text: str, *, body: bool = True, as_json: bool = False, final: bool = False
) -> bytes:
    """Return a complete response of the proxy itself, after which the connection ends.

    Args:
        status: Its status.
        reason: The reason phrase.
        text: The body, one line.
        body: Whether to send it: not for HEAD.
        as_json: Whether the body is JSON, with the text where the clients of common APIs look for it.
        final: Whether to say that a retry is useless, in the header that the SDKs of openai and anthropic obey.
    """
    content, kind = f"{text}\n".encode("ascii", "backslashreplace"), "text/plain; charset=us-ascii"
    if as_json:
        error = {"message": text, "type": "forbidden", "code": "cellblock"}
        content, kind = json.dumps({"error": error, "message": text}).encode(), "application/json"
    phrase = re.sub(r"[^\x20-\x7e]", "?", reason)
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\nConnection: close\r\n"
        f"{_FINAL * final}\r\n"
    )
    return head.encode("ascii") + (content if body else b"")


def check_head(reader: h11.Connection) -> None:
    """Check a head that is being read for what h11 repairs, or takes long to parse: many short lines.

    Raises:
        h11.RemoteProtocolError: It has too many lines, or a header of a request continues on the next line.
    """
    data, _ = reader.trailing_data
    end = _HEAD_END.search(data)
    if data.count(b"\n", 0, end.start() if end else len(data)) > MAX_LINES:
        raise h11.RemoteProtocolError(f"it has more than {MAX_LINES} header lines", error_status_hint=431)
    if reader.our_role is h11.SERVER and end is not None and _FOLDED.search(data, 0, end.start() + 1):
        raise h11.RemoteProtocolError("a header continues on the next line")


def check_framing(request: h11.Request) -> None:
    """Check that the framing of a request is unambiguous.

    Raises:
        BadRequestError: It is not.
    """
    headers = [*request.headers]  # h11 takes long for each pass over them
    lengths, codings = (_values(headers, name) for name in (b"content-length", b"transfer-encoding"))
    if lengths and codings:
        raise BadRequestError("Content-Length and Transfer-Encoding cannot be combined")
    if codings and request.http_version < b"1.1":
        raise BadRequestError("Transfer-Encoding needs HTTP/1.1")
    if request.method == b"CONNECT" and (codings or any(int(length) for length in lengths)):
        raise BadRequestError("CONNECT has no body")


def check_between_chunks(reader: h11.Connection) -> None:
    """Check that the unparsed rest of a chunked body is small: the beginning of a chunk, or of trailers.

    Raises:
        h11.RemoteProtocolError: It is too large.
    """
    if len(reader.trailing_data[0]) > CHUNKED_READ:
        raise h11.RemoteProtocolError(f"it has more than {CHUNKED_READ} bytes between chunks or after them")


def _authority(text: str, default_port: int | None) -> Target:
    try:
        return parse_authority(text, default_port)
    except BadNameError as error:
        raise BadTargetError(str(error), text) from error


def _check_host(request: h11.Request, target: Target) -> None:
    for value in _values(request.headers, b"host"):
        try:
            named = _host_header(value.decode("ascii"), target)
        except (BadNameError, UnicodeDecodeError) as error:
            raise BadRequestError(f"the Host header is wrong: {error}") from error
        if named != (target.host, target.port):
            raise BadRequestError(f"the Host header does not name the target of the request, {target}")


def _host_header(text: str, target: Target) -> tuple[Host, int]:
    if split_port(text)[1] is None and target.port != _HTTP_PORT and text:
        # A CONNECT to a.example:443 may have the Host a.example, and so may http://a.example:8080 from a few clients.
        return canonical_host(text), target.port
    named = parse_authority(text, _HTTP_PORT)
    return named.host, named.port


def _values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _not_for_a_proxy(text: str) -> str:
    if text.lower().startswith("https://"):
        return "https is tunnelled: send CONNECT"
    if "://" in text:
        return "only http:// and CONNECT are proxied"
    return "this is a proxy: the request needs an absolute http:// URL, or CONNECT"
