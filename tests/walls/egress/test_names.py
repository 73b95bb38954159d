"""One canonical form for a host, and no spelling that slips past it."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cellblock.walls.egress import addresses
from cellblock.walls.egress.names import (
    BadNameError,
    Target,
    canonical_host,
    host_text,
    parse_authority,
    parse_port,
    unmapped,
)
from cellblock.walls.egress.rules import Rules

LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join).filter(lambda name: not name.rpartition(".")[2][:1].isdigit())
ADDRESSES = st.ip_addresses()


def spell(address: IPv4Address, bases: list[int], parts: int, dot: bool) -> str:
    """Write an IPv4 address as the C library would read it, in one to four parts of any base."""
    left, numbers = int(address), []
    for index in range(parts - 1):
        numbers.append(left >> 8 * (3 - index) & 255)
    numbers.append(left & (256 ** (5 - parts) - 1))
    forms = {8: "0{:o}", 10: "{}", 16: "0x{:x}", 17: "0X{:X}"}
    return ".".join(forms[base].format(number) for base, number in zip(bases, numbers, strict=False)) + "." * dot


SPELLINGS = st.builds(
    lambda address, bases, parts, dot: (address, spell(address, bases, parts, dot)),
    st.ip_addresses(v=4),
    st.lists(st.sampled_from([8, 10, 16, 17]), min_size=4, max_size=4),
    st.integers(1, 4),
    st.booleans(),
)


@given(st.text(max_size=60) | NAMES | ADDRESSES.map(str) | st.from_regex(r"[0-9a-fx.:\[\]%@*-]{1,20}", fullmatch=True))
@example("xn--bcher-kva.example")
@example("faß.example")
@example("１２７．１")
@example("1.2.3.4.")
def test_idempotent(text: str) -> None:
    """The canonical form of anything is its own canonical form, in ASCII; nothing but BadNameError ever comes out."""
    try:
        host = canonical_host(text)
    except BadNameError:
        return
    assert canonical_host(host_text(host)) == host
    assert canonical_host(str(host)) == host
    if isinstance(host, str):
        assert host.isascii()
        assert host == host.lower()
        assert not set(host) & set("\0\r\n\t %@/:[]#?\\*")
        assert not host.endswith(".")


@given(NAMES, st.data())
def test_two_spellings_of_a_name_are_one(name: str, data: st.DataObject) -> None:
    upper = "".join(data.draw(st.sampled_from([sign, sign.upper()])) for sign in name)
    dotted = upper + data.draw(st.sampled_from(["", "."]))
    assert canonical_host(dotted) == name
    rules = Rules.parse(["*"], [name])
    assert rules.judge(Target(canonical_host(dotted), 443)) is not None


@given(SPELLINGS)
def test_spellings_of_an_ipv4_address(pair: tuple[IPv4Address, str]) -> None:
    """Every spelling that the C library reads as an address is that address."""
    address, text = pair
    assert socket.inet_aton(text.removesuffix(".")) == address.packed
    assert canonical_host(text) == address


@given(st.from_regex(r"([0-9]{1,12}|0[xX][0-9a-fA-F]{0,9})(\.([0-9]{1,12}|0[xX][0-9a-fA-F]{0,9})){0,4}\.?", fullmatch=True))
def test_numbers_are_what_the_c_library_takes_them_for(text: str) -> None:
    """What looks like an address is the one that the C library would dial, or refused: never a name to be looked up."""
    try:
        host = canonical_host(text)
    except BadNameError:
        return
    assert isinstance(host, IPv4Address)
    assert socket.inet_aton(text.removesuffix(".")) == host.packed


@given(SPELLINGS)
def test_no_spelling_of_a_forbidden_address_is_allowed(pair: tuple[IPv4Address, str]) -> None:
    address, text = pair
    found = addresses.objection(address)
    assume(found is not None)
    host = canonical_host(text)
    target = Target(host, 443)
    assert isinstance(host, IPv4Address)
    assert Rules.parse(["*"]).judge_address(target, target, addresses.objection(host)) is not None


@given(st.ip_addresses(v=4))
def test_mapped_addresses_are_what_they_reach(address: IPv4Address) -> None:
    number = int(address)
    for text in (f"::ffff:{address}", f"[::FFFF:{address}]", f"0:0:0:0:0:ffff:{number >> 16:x}:{number & 65535:x}"):
        assert canonical_host(text) == address
    assert unmapped(ip_address(f"::ffff:{address}")) == address


@given(st.ip_addresses(v=6))
def test_ipv6_addresses(address: IPv6Address) -> None:
    assert canonical_host(f"[{address.exploded.upper()}]") == unmapped(address)
    with pytest.raises(BadNameError, match="zone"):
        canonical_host(f"{address}%eth0")


@given(NAMES, st.integers(1, 65535))
def test_authorities(name: str, port: int) -> None:
    assert parse_authority(f"{name}:{port}") == Target(name, port)
    assert str(parse_authority(f"{name}:{port}")) == f"{name}:{port}"
    assert parse_authority(name, 80) == Target(name, 80)
    for wrong in (
        f"u@{name}:{port}",
        f"{name}:{port}:{port}",
        f"{name}:{port} ",
        f"[{name}]:{port}",
        f"{name}:",
        f"{name}:+{port}",
    ):
        with pytest.raises(BadNameError):
            parse_authority(wrong)
    with pytest.raises(BadNameError, match="port is missing"):
        parse_authority(name)


def test_user_information_is_called_that() -> None:
    with pytest.raises(BadNameError, match="user information"):
        parse_authority("allowed.example@evil.example:443")


def test_bad_ports() -> None:
    for text in ("0", "65536", "", "+1", " 1", "1 ", "1_0", "١", "0x50", "000080"):
        with pytest.raises(BadNameError, match="port"):
            parse_port(text)


def test_bad_brackets() -> None:
    for text in ("[::1", "::1]", "[::1]]", "[[::1]]", "[]", "[::1]x:80", "::1:80", "[1.2.3.4]:80"):
        with pytest.raises(BadNameError):
            parse_authority(text, 80)


def test_names() -> None:
    cases: list[tuple[str, str]] = [
        ("Bücher.example", "xn--bcher-kva.example"),
        ("bu\u0308cher.example.", "xn--bcher-kva.example"),
        ("faß.example", "xn--fa-hia.example"),  # IDNA 2003, in the standard library, would make it fass.example
        ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
        ("my_bucket.example", "my_bucket.example"),
        ("localhost", "localhost"),
    ]
    for text, host in cases:
        assert canonical_host(text) == host


def test_what_the_resolver_is_given_is_short_enough() -> None:
    long = ".".join(["a" * 63] * 3)
    assert canonical_host(f"{long}.{'b' * 61}")
    for text in (f"{long}.{'b' * 62}", "a" * 64, "a." * 200, "9" * 5000, "ü" * 250):
        with pytest.raises(BadNameError):
            canonical_host(text)
