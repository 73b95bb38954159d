"""Control messages as bytes: one of those that an end may be sent, or an error that names what is wrong."""

from __future__ import annotations

import pytest

from cellblock.errors import ProtocolError
from cellblock.wire.control import TO_INIT, Interrupt, Run
from cellblock.wire.copies import FROM_COPY, TO_COPY, Copied, Start, Taken
from cellblock.wire.datagrams import MAX_CONTROL, Incoming, encode_control


def test_a_message_is_the_same_after_its_journey() -> None:
    assert FROM_COPY.decode(encode_control(Copied(7))) == Copied(7)
    assert TO_INIT.decode(encode_control(Interrupt())) == Interrupt()


def test_what_an_end_may_not_be_sent_is_refused() -> None:
    cases: list[tuple[bytes, str]] = [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON|no op"),
        (b"[]", "no op that may be sent here: copied"),
        (b'{"number":1}', "no op"),
        (b'{"op":["copied"]}', "no op"),
        (b'{"op":"interrupt"}', "no op"),
        (b'{"op":"copied"}', "'copied' message is wrong"),
        (b'{"op":"copied","number":"1"}', "'copied' message is wrong"),
        (b'{"op":"copied","number":1,"more":1}', "'copied' message is wrong"),
    ]
    for data, complaint in cases:
        with pytest.raises(ProtocolError, match=complaint):
            FROM_COPY.decode(data)


def test_only_what_is_listed_may_come() -> None:
    copied: Incoming[Copied] = Incoming(Copied)
    with pytest.raises(ProtocolError, match=r"may be sent here: copied$"):
        copied.decode(encode_control(Taken(1)))


def test_a_message_over_the_limit_is_not_sent() -> None:
    large = Run(1, ("x" * MAX_CONTROL,), ".", None, {}, "both", None)
    with pytest.raises(ProtocolError, match=f"a 'run' message of [0-9]+ bytes is over the limit of {MAX_CONTROL}"):
        encode_control(large)


def test_what_comes_from_a_trusted_sender_is_the_same_without_checks() -> None:
    sent = Start(3, {"A": "ü"}, None, seed=7, same_random_state=False, to_inspect=True)
    assert TO_COPY.read(encode_control(sent)) == TO_COPY.decode(encode_control(sent)) == sent
