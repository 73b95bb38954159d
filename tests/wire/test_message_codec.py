"""Messages: what is encoded is decoded the same, and what cannot be decoded cannot be encoded."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import ProtocolError
from cellblock.wire import messages as m
from cellblock.wire.fields import MAX_ARGUMENTS, MAX_CODE, MAX_ERROR, MAX_MIMES, MAX_NUMBER, MAX_TEXT, PIECE
from cellblock.wire.frames import MAX_BODY, MAX_DEPTH, Frame, FrameParser
from cellblock.wire.message_codec import decode, encode
from wire_cases import BY_TYPE, TYPES, brief, frame, hostile_frames, messages, unhurried


def round_trip(message: m.Message) -> m.Message:
    """Return what the other side makes of a message."""
    (found,) = FrameParser().feed(encode(message))
    return decode(found)


def read(header: dict[str, Any], body: bytes = b"") -> m.Message:
    """Decode a frame that no sender of ours would make."""
    return decode(FrameParser().feed(frame(header, body))[0])


def test_every_message_is_tested_here() -> None:
    classes = {kind.type for kind in get_args(m.Message)}
    assert classes == set(BY_TYPE) == set(TYPES)


@unhurried
@given(messages)
def test_a_message_arrives_as_it_was_sent(message: m.Message) -> None:
    assert round_trip(message) == message


@brief
@given(hostile_frames)
def test_any_frame_gives_a_message_or_a_protocol_error(raw: bytes) -> None:
    try:
        for found in FrameParser().feed(raw):
            message = decode(found)
            encode(message)  # nothing comes out that could not have been meant
    except ProtocolError as error:
        str(error).encode()


odd_text = st.text(st.characters(), max_size=8) | st.sampled_from(["x" * MAX_TEXT, "x" * (MAX_TEXT + 1)])
odd_values = st.recursive(
    st.none() | st.floats() | st.integers() | odd_text | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(odd_text | st.integers(), inner, max_size=2),
    max_leaves=20,
)


@unhurried
@given(
    st.dictionaries(odd_text, st.binary(max_size=3), max_size=3),
    st.dictionaries(odd_text | st.integers(), odd_values, max_size=2),
    st.none() | odd_text,
    odd_text,
)
def test_what_code_chooses_is_refused_by_the_sender_and_never_by_the_receiver(
    bundle: dict[str, bytes], metadata: dict[Any, Any], display_id: str | None, text: str
) -> None:
    """A kernel dies of what its host refuses, so code that shows something odd must be told before it is sent."""
    chosen: list[m.Message] = [
        m.Display("display_data", bundle, metadata, display_id, tuple(bundle)),
        m.Part(text, b""),
        m.Reply(1, "Error", text, (text,)),
        m.InputRequest(1, text, False),
        m.Changed((text,), (text,), (text,)),
        m.Completed((text,), 0, 0),
        m.Inspected(text),
    ]
    for message in chosen:
        try:
            raw = encode(message)
        except ProtocolError:
            continue
        decode(FrameParser().feed(raw)[0])


def test_lone_surrogates_in_text_arrive_as_escapes() -> None:
    assert round_trip(m.InputRequest(1, "a\ud800", False)) == m.InputRequest(1, "a\\ud800", False)
    assert round_trip(m.Reply(1, "E", "\udc80", ("\udfff",))) == m.Reply(1, "E", "\\udc80", ("\\udfff",))


def test_text_that_is_no_utf8_is_read_all_the_same() -> None:
    assert read({"type": "inspected", "sizes": [2]}, b"a\xff") == m.Inspected("a�")


def test_an_exception_without_a_name_is_still_an_exception() -> None:
    assert round_trip(m.Reply(1, "", "message")) == m.Reply(1, "", "message")


# -- limits: at the limit, and one more ---------------------------------------------------------------------------------


def test_code_has_a_limit_in_bytes() -> None:
    cases: list[Any] = [m.Execute, lambda code: m.Complete(code, 0), lambda code: m.Inspect(code, 0)]
    for make in cases:
        longest = "é" * (MAX_CODE // 2)
        assert round_trip(make(longest)) == make(longest)
        with pytest.raises(ProtocolError, match=str(MAX_CODE)):
            encode(make(longest + "x"))
        header = {"type": make("").type, "sizes": [MAX_CODE + 1], "cursor": 0, "detail": 0}
        with pytest.raises(ProtocolError, match=f"code has {MAX_CODE + 1} bytes, over the limit of {MAX_CODE}"):
            read(header, bytes(MAX_CODE + 1))


def test_code_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        encode(m.Execute("'\ud800'"))


def stream(data: bytes) -> m.Message:
    return m.Stream("stdout", data)


def part(data: bytes) -> m.Message:
    return m.Part("text/html", data)


def test_a_piece_has_a_limit() -> None:
    cases: list[Any] = [stream, part]
    for make in cases:
        assert round_trip(make(bytes(PIECE))) == make(bytes(PIECE))
        with pytest.raises(ProtocolError, match=str(PIECE)):
            encode(make(bytes(PIECE + 1)))
        header = {"type": make(b"").type, "name": "stdout", "mime": "text/html", "sizes": [PIECE + 1]}
        with pytest.raises(ProtocolError, match=str(PIECE)):
            read(header, bytes(PIECE + 1))


def bundle_of(number: int) -> dict[str, bytes]:
    return {f"text/{index}": b"" for index in range(number)}


def test_a_bundle_has_a_limit() -> None:
    assert round_trip(m.Display("display_data", bundle_of(MAX_MIMES))) == m.Display("display_data", bundle_of(MAX_MIMES))
    mimes = [*bundle_of(MAX_MIMES + 1)]
    with pytest.raises(ProtocolError, match=str(MAX_MIMES)):
        encode(m.Display("display_data", bundle_of(MAX_MIMES + 1)))
    with pytest.raises(ProtocolError, match=f"mimes has {MAX_MIMES + 1} items, over the limit of {MAX_MIMES}"):
        read({"type": "display", "kind": "display_data", "mimes": mimes, "sizes": [0] * len(mimes)})


def test_the_parts_of_a_bundle_have_a_limit() -> None:
    parts = tuple(bundle_of(MAX_MIMES))
    assert round_trip(m.Display("display_data", {}, parts=parts)) == m.Display("display_data", {}, parts=parts)
    with pytest.raises(ProtocolError, match=str(MAX_MIMES)):
        encode(m.Display("display_data", {}, parts=(*parts, "text/one-more")))
    with pytest.raises(ProtocolError, match=f"parts has {MAX_MIMES + 1} items, over the limit of {MAX_MIMES}"):
        read({"type": "display", "kind": "display_data", "parts": [*parts, "text/one-more"]})


def test_an_error_is_not_larger_than_the_host_decodes_in_one_turn() -> None:
    most = m.Reply(1, "E", "x" * 1000, ("y" * (MAX_ERROR - 1000),))
    assert round_trip(most) == most
    with pytest.raises(ProtocolError, match=str(MAX_ERROR)):
        encode(m.Reply(1, "E", "x" * 1001, most.traceback))
    with pytest.raises(ProtocolError, match=str(MAX_ERROR)):
        read({"type": "reply", "execution_count": 1, "ename": "E", "sizes": [MAX_ERROR + 1]}, bytes(MAX_ERROR + 1))


def test_the_arguments_of_an_installation_have_a_limit() -> None:
    most = m.Install(1, ("x",) * MAX_ARGUMENTS)
    assert round_trip(most) == most
    with pytest.raises(ProtocolError, match=str(MAX_ARGUMENTS)):
        encode(m.Install(1, ("x",) * (MAX_ARGUMENTS + 1)))
    with pytest.raises(ProtocolError, match=f"arguments has {MAX_ARGUMENTS + 1} items, over the limit of {MAX_ARGUMENTS}"):
        read({"type": "install", "number": 1, "sizes": [0] * (MAX_ARGUMENTS + 1)})


TEXT_FIELDS: dict[str, tuple[Any, Any]] = {
    "mime": (lambda text: m.Part(text, b""), lambda text: {"type": "part", "mime": text, "sizes": [0]}),
    "mimes": (
        lambda text: m.Display("display_data", {text: b""}),
        lambda text: {"type": "display", "kind": "display_data", "mimes": [text], "sizes": [0]},
    ),
    "parts": (
        lambda text: m.Display("display_data", {}, parts=(text,)),
        lambda text: {"type": "display", "kind": "display_data", "parts": [text]},
    ),
    "display_id": (
        lambda text: m.Display("display_data", {}, display_id=text),
        lambda text: {"type": "display", "kind": "display_data", "display_id": text},
    ),
}


def test_a_string_in_a_header_has_a_limit() -> None:
    for name in TEXT_FIELDS:
        make, header = TEXT_FIELDS[name]
        assert round_trip(make("é" * MAX_TEXT)) == make("é" * MAX_TEXT)
        with pytest.raises(ProtocolError, match=str(MAX_TEXT)):
            encode(make("x" * (MAX_TEXT + 1)))
        with pytest.raises(ProtocolError, match=name):
            read(header("x" * (MAX_TEXT + 1)))


def test_the_name_of_an_exception_has_a_limit() -> None:
    longest = "E" * MAX_TEXT
    assert read({"type": "reply", "execution_count": 1, "ename": longest, "later": 0, "sizes": [0]}) == m.Reply(1, longest)
    with pytest.raises(ProtocolError, match="ename"):
        read({"type": "reply", "execution_count": 1, "ename": "E" * (MAX_TEXT + 1), "sizes": [0]})


def test_what_belongs_together_must_be_as_many() -> None:
    with pytest.raises(ProtocolError, match="changed: types must be as many as names"):
        encode(m.Changed(("a", "b"), ("int",)))


def test_what_has_its_default_is_not_sent_and_not_missed() -> None:
    assert m.Reply(1) == read({"type": "reply", "execution_count": 1})
    assert b"sizes" not in encode(m.Reply(1))
    assert read({"type": "execute", "sizes": [1]}, b"x") == m.Execute("x")


def test_an_integer_in_a_header_has_limits_and_is_an_integer() -> None:
    cases: list[object] = [-1, MAX_NUMBER + 1, 10**4000, True, 1.0, "1", None, [1]]
    for number in cases:
        assert round_trip(m.Ready(MAX_NUMBER)) == m.Ready(MAX_NUMBER)
        assert round_trip(m.Ready(0)) == m.Ready(0)
        with pytest.raises(ProtocolError, match=f"version must be an integer from 0 to {MAX_NUMBER}"):
            read({"type": "ready", "version": number})


def test_metadata_may_be_nested_as_deep_as_a_header_and_no_deeper() -> None:
    def nested(levels: int) -> dict[str, Any]:
        return {"x": nested(levels - 1)} if levels else {}

    fitting = m.Display("display_data", {}, nested(MAX_DEPTH - 2))
    assert round_trip(fitting) == fitting
    with pytest.raises(ProtocolError, match="deep"):
        encode(m.Display("display_data", {}, nested(MAX_DEPTH - 1)))


def test_more_matches_than_a_header_can_count_are_refused_by_the_sender() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        encode(m.Completed(("x",) * 40_000, 0, 0))


def test_buffers_that_are_too_large_together_are_refused_by_the_sender() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        encode(m.Display("display_data", {"a": bytes(MAX_BODY), "b": b"x"}))


# -- fields -------------------------------------------------------------------------------------------------------------


def test_a_wrong_field_is_named() -> None:
    cases: list[tuple[dict[str, Any], bytes, str]] = [
        ({"type": "nonsense"}, b"", "unknown message type 'nonsense'"),
        ({"type": "x" * 5000}, b"", "unknown message type 'x{40}'"),
        ({"type": "clear", "wait": 1}, b"", "clear: wait must be true or false"),
        ({"type": "clear", "wait": None}, b"", "clear: wait must be true or false"),
        ({"type": "stream", "name": "stdin", "sizes": [0]}, b"", "stream: name must be one of 'stdout', 'stderr'"),
        ({"type": "stream", "name": ["stdout"], "sizes": [0]}, b"", "stream: name must be one of"),
        ({"type": "stream", "name": "stdout"}, b"", "stream: sizes must have more lengths, for text"),
        ({"type": "stream", "name": "stdout", "sizes": [1, 1]}, b"ab", "stream: sizes has 1 more than there are fields"),
        ({"type": "stream", "name": "stdout", "sizes": [1]}, b"ab", "sizes add up to 1, the body has 2"),
        ({"type": "stream", "name": "stdout"}, b"ab", "sizes add up to 0, the body has 2"),
        ({"type": "stream", "name": "stdout", "sizes": [3, -1]}, b"ab", "sizes must be a list of lengths"),
        ({"type": "stream", "name": "stdout", "sizes": [True]}, b"a", "sizes must be a list of lengths"),
        ({"type": "stream", "name": "stdout", "sizes": [1.0]}, b"a", "sizes must be a list of lengths"),
        ({"type": "stream", "name": "stdout", "sizes": {"0": 1}}, b"a", "sizes must be a list of lengths"),
        ({"type": "stream", "name": "stdout", "sizes": None}, b"a", "sizes must be a list of lengths"),
        ({"type": "stream", "name": "stdout", "sizes": [MAX_BODY + 1]}, b"a", "sizes must be a list of lengths"),
        ({"type": "part", "sizes": [0]}, b"", "part: mime is missing"),
        ({"type": "display", "kind": "stream"}, b"", "display: kind must be one of"),
        (
            {"type": "display", "kind": "display_data", "mimes": ["a"]},
            b"",
            "display: mimes must be distinct, one for each buffer",
        ),
        ({"type": "display", "kind": "display_data", "mimes": ["a", "a"], "sizes": [0, 0]}, b"", "mimes must be distinct"),
        ({"type": "display", "kind": "display_data", "mimes": "ab", "sizes": [0, 0]}, b"", "mimes must be a list"),
        (
            {"type": "display", "kind": "display_data", "mimes": [[]], "sizes": [0]},
            b"",
            "mimes must be a string",
        ),
        ({"type": "display", "kind": "display_data", "parts": [1]}, b"", "parts must be a string"),
        ({"type": "display", "kind": "display_data", "metadata": []}, b"", "metadata must be an object"),
        ({"type": "display", "kind": "display_data", "display_id": 1}, b"", "display_id must be a string"),
        ({"type": "reply", "execution_count": 1, "ename": 1, "sizes": [0]}, b"", "reply: ename must be a string"),
        ({"type": "inspect", "cursor": 0, "detail": 2, "sizes": [0]}, b"", "inspect: detail must be an integer from 0 to 1"),
        ({"type": "execute"}, b"", "execute: sizes must have more lengths, for code"),
        ({"type": "changed", "names": 51, "sizes": [0] * 102}, b"", "names must be an integer from 0 to 50"),
        ({"type": "changed", "names": 1, "sizes": [0]}, b"", "sizes must have more lengths, for types"),
        ({"type": "changed", "names": 0, "sizes": [0] * 51}, b"", "gone has 51 items, over the limit of 50"),
        ({"type": "changed", "names": 0, "sizes": [4097]}, b"a" * 4097, "gone has 4097 bytes, over the limit of 4096"),
        ({"type": "inspected", "sizes": [0, 0]}, b"", "inspected: sizes has 1 more than there are fields"),
    ]
    for header, body, complaint in cases:
        with pytest.raises(ProtocolError, match=complaint):
            read(header, body)


def test_sizes_so_large_that_their_sum_cannot_be_printed_are_refused() -> None:
    """Python refuses to print an integer of more than 4300 digits, with a ValueError."""
    huge = b"9" * 4300
    with pytest.raises(ProtocolError, match="sizes"):
        decode(FrameParser().feed(frame(b'{"type":"clear","wait":true,"sizes":[%s,%s]}' % (huge, huge)))[0])


def test_fields_that_nobody_knows_are_ignored() -> None:
    assert read({"type": "clear", "wait": True, "new": {"a": [1]}}) == m.Clear(True)


def test_a_message_does_not_hold_the_frame_that_it_came_in() -> None:
    header = {"type": "display", "kind": "display_data", "mimes": ["a", "b"], "sizes": [1, 2]}
    message = decode(Frame(header, b"abb"))
    assert isinstance(message, m.Display)
    assert message.data == {"a": b"a", "b": b"bb"}
