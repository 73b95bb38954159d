"""Headers of one hop, and those that a Connection header names, are not passed on."""

from __future__ import annotations

from cellblock.common.http_headers import end_to_end


def test_headers_for_one_hop_are_dropped() -> None:
    headers = [(b"Connection", b"keep-alive, X-Own"), (b"x-own", b"1"), (b"TE", b"trailers"), (b"Accept", b"*/*")]
    assert end_to_end(headers) == [(b"Accept", b"*/*")]


def test_framing_and_address_stay_whatever_connection_names() -> None:
    headers = [(b"connection", b"content-length"), (b"connection", b" Host "), (b"content-length", b"2"), (b"host", b"a")]
    assert end_to_end(headers) == [(b"content-length", b"2"), (b"host", b"a")]
