"""Which addresses are special, and which are this machine's own."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.walls.egress.addresses import objection, objection_to, own


def test_public_addresses() -> None:
    cases: list[str] = [
        "1.1.1.1",
        "8.8.8.8",
        "93.184.216.34",
        "100.128.0.1",
        "172.32.0.1",
        "2606:4700::1111",
        "64:ff9b::808:808",
        "2a00::5efe:808:808",
    ]
    for text in cases:
        assert objection_to(ip_address(text)) is None


@given(st.ip_addresses())
def test_what_python_calls_special_is_refused(address: IPv4Address | IPv6Address) -> None:
    """Our tables refuse all that `ipaddress` calls private, reserved or the like, and more."""
    special = address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
    if special or address.is_unspecified or (isinstance(address, IPv4Address) and address.is_reserved):
        # A mapped address is the one that it reaches.
        assert objection(address) or (isinstance(address, IPv6Address) and address.ipv4_mapped)


@given(st.ip_addresses(v=4))
def test_carriers_are_judged_by_what_they_carry(address: IPv4Address) -> None:
    plain = objection(address)
    number = int(address)
    assert objection(ip_address(f"::ffff:{address}")) == plain
    for base in (0x64_FF9B << 96, 0x2A00 << 112 | 0x5EFE << 32, 0x2A00 << 112 | 0x0200_5EFE << 32):
        found = objection(IPv6Address(base | number))
        assert (found is None) == (plain is None)
        assert found is None or not found.private
    assert objection(IPv6Address(0x2002 << 112 | number << 80))
    assert objection(IPv6Address(0x2001_0000 << 96 | number << 64 | ~number & 0xFFFF_FFFF))


def test_the_machines_own() -> None:
    assert own(ip_address("127.0.0.1"))
    assert own(ip_address("93.184.216.34")) is None
    for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
        assert objection_to(ip_address(str(entry[4][0]))) is not None


def test_a_private_address_of_its_own_is_more_than_private(monkeypatch: pytest.MonkeyPatch) -> None:
    found = objection_to(ip_address("10.255.254.253"))
    assert found is not None
    assert found.private
    monkeypatch.setattr("cellblock.walls.egress.addresses.own", lambda address: objection(ip_address("0.0.0.0")))
    found = objection_to(ip_address("10.255.254.253"))
    assert found is not None
    assert not found.private
