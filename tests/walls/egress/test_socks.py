"""SOCKS5 without I/O: what is understood, in whatever pieces it comes, and what is refused with which reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.walls.egress import socks
from cellblock.walls.egress.names import BadTargetError
from cellblock.walls.egress.socks import SocksError, SocksHandshake

GREETING = b"\x05\x01\x00"


def request(kind: int, host: bytes, port: int = 443, command: int = 1, version: int = 5) -> bytes:
    return bytes([version, command, 0, kind]) + host + port.to_bytes(2, "big")


NAME = request(3, b"\x09a.example")


def test_a_request_is_understood_in_whatever_pieces_it_comes() -> None:
    cases: list[tuple[bytes, str]] = [
        (NAME, "a.example:443"),
        (request(3, b"\x09A.EXAMPLE"), "a.example:443"),
        (request(1, bytes([93, 184, 216, 34]), 80), "93.184.216.34:80"),
        (request(4, bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])), "127.0.0.1:443"),
        (request(3, b"\x0512345"), "0.0.48.57:443"),
    ]
    for sent, target in cases:
        for size in (1, 2, 5, 100):
            handshake, answered, data = SocksHandshake(), b"", GREETING + sent + b"early"
            for place in range(0, len(data), size):
                answered += handshake.receive(data[place : place + size])
            assert answered == b"\x05\x00"
            assert str(handshake.target) == target
            assert handshake.trailing() == b"early"


def test_anything_else_is_refused() -> None:
    cases: list[tuple[bytes, bytes]] = [
        (b"\x04\x01\x00", b""),
        (b"\x05\x01\x02", b"\x05\xff"),
        (b"\x05\x00", b"\x05\xff"),
        (GREETING + request(3, b"\x01a", command=2), socks.reply(socks.COMMAND_UNSUPPORTED)),
        (GREETING + request(2, b"\x01a"), socks.reply(socks.ADDRESS_UNSUPPORTED)),
        (GREETING + request(3, b"\x01a", version=4), socks.reply(socks.GENERAL_FAILURE)),
    ]
    for sent, answer in cases:
        with pytest.raises(SocksError) as caught:
            SocksHandshake().receive(sent)
        assert caught.value.answer == answer


def test_a_host_without_a_canonical_form_is_named() -> None:
    cases: list[tuple[bytes, int]] = [(b"\x00", 443), (b"\x01\xff", 443), (b"\x03a b", 443), (b"\x03a\0b", 443), (b"\x01a", 0)]
    for host, port in cases:
        with pytest.raises(BadTargetError) as caught:
            SocksHandshake().receive(GREETING + request(3, host, port))
        assert caught.value.named == host[1:].decode(errors="backslashreplace")


SENT = st.lists(
    st.binary(max_size=30)
    | st.sampled_from([GREETING, NAME, b"\x05\x02\x00\x02", request(1, bytes(4)), request(4, bytes(16))])
    | st.builds(lambda name: request(3, bytes([len(name)]) + name), st.binary(max_size=255)),
    max_size=5,
)


@given(SENT, st.booleans())
def test_whatever_is_sent_is_a_target_an_error_or_not_enough(sent: list[bytes], greeted: bool) -> None:
    handshake, answered, last = SocksHandshake(), b"", b""
    try:
        for piece in [GREETING] * greeted + sent:
            answered += handshake.receive(piece)
    except SocksError as error:
        last = error.answer
    except BadTargetError as error:
        last = error.named.encode()[:10]
    else:
        # What waits is shorter than the longest handshake; after that, the proxy reads on no more.
        assert handshake.target is not None or len(handshake.trailing()) < 519
    assert len(last) <= 10
    assert answered in (b"", b"\x05\x00")
