"""Addresses at which servers of a front listen."""

from __future__ import annotations

import socket

import pytest

from cellblock.common.addresses import bracketed, listen
from cellblock.errors import InvalidInputError


def test_addresses_of_ipv6_are_in_brackets() -> None:
    cases: list[tuple[str, str]] = [("localhost", "localhost"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")]
    for host, shown in cases:
        assert bracketed(host) == shown


def test_a_port_that_another_program_has_is_told() -> None:
    with listen("127.0.0.1", 0, "it") as taken:
        assert taken.proto == socket.IPPROTO_TCP  # otherwise small messages wait for 40 ms
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInputError, match=f"^it cannot listen at 127.0.0.1:{port}: another program listens there"):
            listen("127.0.0.1", port, "it")


def test_what_is_no_address_is_told() -> None:
    with pytest.raises(InvalidInputError, match=r"^it cannot listen at no such host:0: "):
        listen("no such host", 0, "it")
