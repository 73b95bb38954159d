"""Headers of HTTP messages that are parsed and written again."""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

# Headers for one hop only (RFC 9110 section 7.6.1), and older ones for proxies.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authentication-info proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
# A Connection header may not name these: removing the framing or the address changes a message's meaning.
_KEPT = frozenset((b"content-length", b"host"))


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers that are not for one hop only, and that no Connection header names."""
    lowered = [(name.lower(), name, value) for name, value in headers]
    dropped: set[bytes] | frozenset[bytes] = _HOP_BY_HOP
    for lower, _, value in lowered:
        if lower == b"connection":
            dropped = dropped | ({one.strip().lower() for one in value.split(b",")} - _KEPT)
    return [(name, value) for lower, name, value in lowered if lower not in dropped]
