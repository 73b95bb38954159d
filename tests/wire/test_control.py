"""Control messages: one JSON object in one datagram, of the types that may be sent there, or a ProtocolError."""

from __future__ import annotations

import dataclasses
import json
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.errors import ProtocolError
from cellblock.wire import control, copies
from cellblock.wire.control import (
    FORK_DESCRIPTORS,
    FROM_INIT,
    TO_INIT,
    TO_NEW_INIT,
    Hello,
    HttpServer,
    Listener,
    Memory,
    Ran,
    Setup,
)
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS, ControlMessage, Incoming, encode_control
from cellblock.wire.sandbox import Bind, Plan, Restrictions, Sysctl
from wire_cases import unhurried

EVERYTHING = [value for module in (control, copies) for value in vars(module).values()]
KINDS: list[Any] = [value for value in EVERYTHING if isinstance(value, type) and hasattr(value, "op")]
DIRECTIONS = [value for value in EVERYTHING if isinstance(value, Incoming)]
PLAN = Plan(
    everything=False,
    home="/home/user",
    steps=(Bind("/data", "/data", "ro", optional=True), Sysctl("kernel/pid_max", "512", 6, 14)),
    reserve={"/w": (".vscode",)},
    restrictions=Restrictions({"NOFILE": 100}, 0, "AAAA"),
)
FULL = Setup({"A": "b"}, "/w", None, "/tmp/p", "asked", {"tools": Listener(0, "PORT")}, (), PLAN, {"x": [1]}, ("HOME",), None)


def setup(size: int) -> Setup:
    """A message of this many bytes."""
    empty = Setup({"A": ""}, "/w", None, "p")
    return dataclasses.replace(empty, env={"A": "x" * (size - len(encode_control(empty)))})


@pytest.mark.parametrize("kind", KINDS)
@settings(unhurried, max_examples=2)
@given(st.data())
def test_a_message_arrives_as_it_was_sent(kind: Any, data: st.DataObject) -> None:
    # A policy is any JSON, of which there are many spellings.
    policy: dict[str, Any] = {"policy": st.none()} if kind is Setup else {}
    message: Any = data.draw(st.builds(kind, **policy))
    try:
        assert Incoming(kind).decode(encode_control(message)) == message
    except ProtocolError as error:
        assert "must be an integer of 64 bits" in str(error)  # noqa: PT017  # Python's are longer


def test_a_message_with_everything_arrives_as_it_was_sent() -> None:
    assert TO_NEW_INIT.decode(encode_control(FULL)) == FULL


def test_every_message_can_be_sent_somewhere() -> None:
    assert {kind for direction in DIRECTIONS for kind in direction.kinds.values()} == {*KINDS}
    assert len({kind.op for kind in KINDS}) == len(KINDS)


def test_paths_that_are_not_unicode_pass() -> None:
    path = b"/tmp/\xff".decode("utf-8", "surrogateescape")
    assert TO_NEW_INIT.decode(encode_control(dataclasses.replace(FULL, cwd=path))).cwd == path


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@unhurried
@given(st.binary(max_size=200) | st.text(st.characters(), max_size=100).map(json.dumps).map(str.encode))
def test_any_bytes_give_a_message_or_a_protocol_error(raw: bytes) -> None:
    for direction in DIRECTIONS:
        try:
            assert type(direction.decode(raw)) in direction.kinds.values()
        except ProtocolError as error:
            str(error).encode()


@unhurried
@given(st.sampled_from(KINDS), st.data())
def test_any_fields_give_a_message_or_a_protocol_error(kind: Any, data: st.DataObject) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    fields = data.draw(st.dictionaries(st.sampled_from([*names, "x"]), ANY_JSON))
    try:
        message: ControlMessage = Incoming(kind).decode(json.dumps({"op": kind.op, **fields}).encode())
    except ProtocolError as error:
        str(error).encode()
    else:
        assert Incoming(kind).decode(encode_control(message)) is not None


@unhurried
@given(st.lists(ANY_JSON, max_size=6) | ANY_JSON, st.sampled_from([None, "bind", "tmpfs", "sysctl"]))
def test_any_step_gives_a_plan_or_a_protocol_error(step: Any, kind: str | None) -> None:
    sent = json.loads(encode_control(FULL))
    sent["plan"]["steps"] = [[kind, *step] if isinstance(step, list) and kind else step]
    try:
        TO_NEW_INIT.decode(json.dumps(sent).encode())
    except ProtocolError as error:
        str(error).encode()


def test_what_is_not_an_object_with_an_op_of_this_direction_is_refused() -> None:
    cases: list[bytes] = [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"op":1}',
        b'{"op":null}',
        b'{"op":["run"]}',
        b'{"op":"stop"',
        b'{"op":"fork","session":1}',
        b"\xff\xfe",
        b"\xff",
        b"[" * MAX_CONTROL,
        b'{"op":' * 20_000,
        b'{"op":"stop","n":' + b"9" * 5000 + b"}",
    ]
    for raw in cases:
        with pytest.raises(ProtocolError, match=r"a control message (is not valid JSON|has no op that may be sent here)"):
            TO_INIT.decode(raw)


def test_a_field_that_is_wrong_is_named() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"op": "memory"}, "'memory' .*: bytes is missing"),
        ({"op": "memory", "bytes": True}, "bytes: must be an integer"),
        ({"op": "memory", "bytes": 1.0}, "bytes: must be an integer"),
        ({"op": "memory", "bytes": 2**63}, "bytes: must be an integer of 64 bits"),
        ({"op": "memory", "bytes": "1"}, "bytes: must be an integer"),
        ({"op": "memory", "bytes": 1, "copies": 0, "more": 1}, "'more' is unknown"),
        ({"op": "refused", "error": None}, "error: must be a string"),
        ({"op": "listening", "port": 1, "name": 1}, "name: must be a string"),
    ]
    for fields, complaint in cases:
        with pytest.raises(ProtocolError, match=complaint):
            FROM_INIT.decode(json.dumps(fields).encode())


def test_what_is_left_out_has_its_default() -> None:
    assert FROM_INIT.decode(b'{"op":"listening","port":7}') == HttpServer(7, None)
    assert FROM_INIT.decode(b'{"op":"memory","bytes":-1,"copies":0}') == Memory(-1, 0)
    assert FROM_INIT.decode(b'{"op":"ran","number":1,"status":0}') == Ran(1, 0)


def test_a_message_may_be_as_large_as_its_limit_and_no_larger() -> None:
    assert len(encode_control(setup(MAX_CONTROL))) == MAX_CONTROL
    with pytest.raises(ProtocolError, match=f"{MAX_CONTROL + 1} bytes is over the limit of {MAX_CONTROL}"):
        encode_control(setup(MAX_CONTROL + 1))


def test_the_largest_message_fits_into_one_datagram_with_all_descriptors() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        raw = encode_control(setup(MAX_CONTROL))
        socket.send_fds(ours, [raw], [ours.fileno()] * MAX_DESCRIPTORS)
        got, descriptors, _, _ = socket.recv_fds(theirs, MAX_CONTROL, MAX_DESCRIPTORS)
        for descriptor in descriptors:
            socket.close(descriptor)
    assert got == raw
    assert len(descriptors) == MAX_DESCRIPTORS


def test_a_fork_has_room_for_its_descriptors() -> None:
    assert FORK_DESCRIPTORS <= MAX_DESCRIPTORS
    assert len(encode_control(Hello(None))) < MAX_CONTROL
