"""Control messages: one JSON object in one datagram, or a ProtocolError."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import ProtocolError
from cellblock.wire.control import FORK_DESCRIPTORS, MAX_CONTROL, MAX_DESCRIPTORS, decode_control, encode_control
from wire_cases import metadata, short, unhurried


@unhurried
@given(short, metadata)
def test_a_message_arrives_as_it_was_sent(op: str, fields: dict[str, object]) -> None:
    fields.pop("op", None)
    assert decode_control(encode_control(op, **fields)) == {"op": op, **fields}


def test_paths_that_are_no_unicode_pass() -> None:
    path = b"/tmp/\xff".decode("utf-8", "surrogateescape")
    assert decode_control(encode_control("be", cwd=path))["cwd"] == path


@unhurried
@given(st.binary(max_size=200) | st.text(st.characters(), max_size=100).map(json.dumps).map(str.encode))
def test_any_bytes_give_a_message_or_a_protocol_error(raw: bytes) -> None:
    try:
        assert isinstance(decode_control(raw)["op"], str)
    except ProtocolError as error:
        str(error).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"op":1}',
        b'{"op":null}',
        b'{"op":["fork"]}',
        b'{"op":"fork"',
        b"\xff\xfe",
        b"\xff",
        b"[" * MAX_CONTROL,
        b'{"op":' * 20_000,
        b'{"op":"x","n":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_object_with_an_op_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError, match="a control message is no"):
        decode_control(raw)


def test_a_message_may_be_as_large_as_its_limit_and_no_larger() -> None:
    overhead = len(encode_control("be", env=""))
    assert len(encode_control("be", env="x" * (MAX_CONTROL - overhead))) == MAX_CONTROL
    with pytest.raises(ProtocolError, match=f"{MAX_CONTROL + 1} bytes is over the limit of {MAX_CONTROL}"):
        encode_control("be", env="x" * (MAX_CONTROL - overhead + 1))


def test_the_largest_message_fits_into_one_datagram_with_all_descriptors() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        overhead = len(encode_control("be", env=""))
        raw = encode_control("be", env="x" * (MAX_CONTROL - overhead))
        socket.send_fds(ours, [raw], [ours.fileno()] * MAX_DESCRIPTORS)
        got, descriptors, _, _ = socket.recv_fds(theirs, MAX_CONTROL, MAX_DESCRIPTORS)
        for descriptor in descriptors:
            socket.close(descriptor)
    assert got == raw
    assert len(descriptors) == MAX_DESCRIPTORS


def test_a_fork_has_room_for_its_descriptors() -> None:
    assert FORK_DESCRIPTORS <= MAX_DESCRIPTORS
