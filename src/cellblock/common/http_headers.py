"""Headers of HTTP messages that are parsed and written again."""

from __future__ import annotations

from collections.abc import Iterable

# Headers for one hop only (RFC 9110 section 7.6.1), and older ones for proxies.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authentication-info proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
# A Connection header may not name these: removing the framing or the address changes a message's meaning.
_KEPT = frozenset((b"content-length", b"host"))


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that are not for one hop only, and that no Connection header names."""
    headers = [*headers]
    named = {one.strip().lower() for name, value in headers if name.lower() == b"connection" for one in value.split(b",")}
    dropped = _HOP_BY_HOP | (named - _KEPT)
    return [(name, value) for name, value in headers if name.lower() not in dropped]
