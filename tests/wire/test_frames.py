"""Frames: any bytes give frames or a ProtocolError, any cut gives the same frames, and memory stays bounded."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import ProtocolError
from cellblock.wire.frames import MAX_BODY, MAX_DEPTH, MAX_HEADER, Frame, FrameParser, encode_frame
from wire_cases import PREFIX, brief, cut, data, frame, hostile, metadata, places, unhurried

headers = st.builds(lambda fields, kind: {**fields, "type": kind}, metadata, st.text(max_size=10))


def nested(levels: int) -> dict[str, Any]:
    """Return a header of so many levels, itself the first."""
    value: Any = 1
    for _ in range(levels - 1):
        value = [value]
    return {"type": "t", "value": value}


def header_of(size: int) -> dict[str, Any]:
    """Return a header that has exactly so many bytes when it is encoded."""
    return {"type": "t", "fill": "x" * (size - len('{"type":"t","fill":""}'))}


def held(parser: FrameParser) -> int:
    """How many bytes a parser keeps between calls."""
    return sys.getsizeof(parser._pending)


@unhurried
@given(st.lists(st.tuples(headers, data), max_size=4), places)
def test_frames_come_out_as_they_went_in_wherever_the_stream_is_cut(frames: list[tuple[Any, bytes]], at: list[int]) -> None:
    raw = b"".join(encode_frame(header, body) for header, body in frames)
    parser = FrameParser()
    found = [frame for piece in cut(raw, at) for frame in parser.feed(piece)]
    assert found == [Frame(header, body) for header, body in frames]


@pytest.mark.slow
@brief
@given(hostile, places)
def test_any_bytes_give_frames_or_a_protocol_error(raw: bytes, at: list[int]) -> None:
    parser = FrameParser()
    try:
        for piece in cut(raw, at):
            for found in parser.feed(piece):
                assert isinstance(found.header["type"], str)
    except ProtocolError as error:
        str(error).encode()  # it can be shown and logged


def test_a_header_that_is_no_plain_json_object_with_a_type_is_refused() -> None:
    cases: list[bytes] = [
        b"",
        b"null",
        b"[]",
        b'"type"',
        b"{}",
        b'{"type":null}',
        b'{"type":1}',
        b'{"type":["stream"]}',
        b'{"type":{}}',
        b'{"type":"t"',
        b'{"type":"t"}x',
        b'\xef\xbb\xbf{"type":"t"}',
        b'{"type":"\xff"}',
        b'{"type":"\xed\xa0\x80"}',
        b'{"type":"\\ud800"}',
        b'{"type":"\\uDC00"}',
        b'{"type":"t","\\ud800":1}',
        b'{"type":"t","deep":[["\\udfff"]]}',
        b'{"type":"t","x":NaN}',
        b'{"type":"t","x":-Infinity}',
        b'{"type":"t","x":1e999}',
        b'{"type":"t","x":' + b"9" * 4301 + b"}",
        b'{"type":"t","x":' + b"9" * 60_000 + b"}",
        b'{"type":"t","x":' + b"[" * 60_000,
        b'{"type":"t","x":' + b'{"":' * 15_000,
        b"[" * MAX_HEADER,
        '{"type":"t"}'.encode("utf-16"),
        '{"type":"t"}'.encode("utf-32"),
    ]
    for header in cases:
        with pytest.raises(ProtocolError, match="header"):
            FrameParser().feed(frame(header))


def test_characters_of_every_kind_may_stand_in_a_header() -> None:
    for text in ("\\u0000", "\\ud83d\\ude00", "é", "😀", "\\u2028"):
        (found,) = FrameParser().feed(frame(f'{{"type":"t","x":"{text}"}}'.encode()))
        assert encode_frame(found.header)


def test_of_a_key_that_occurs_twice_the_last_one_counts() -> None:
    (found,) = FrameParser().feed(frame(b'{"type":"a","type":"b"}'))
    assert found.header == {"type": "b"}


def test_a_header_may_be_as_large_as_its_limit_and_no_larger() -> None:
    raw = encode_frame(header_of(MAX_HEADER))
    assert PREFIX.unpack_from(raw)[0] == MAX_HEADER
    assert FrameParser().feed(raw)[0].header["type"] == "t"
    with pytest.raises(ProtocolError, match="over the limit"):
        encode_frame(header_of(MAX_HEADER + 1))
    with pytest.raises(ProtocolError, match="announces"):
        FrameParser().feed(frame(header_of(MAX_HEADER + 1)))


def test_a_body_may_be_as_large_as_its_limit_and_no_larger() -> None:
    body = bytes(MAX_BODY)
    assert FrameParser().feed(encode_frame({"type": "t"}, body)) == [Frame({"type": "t"}, body)]
    with pytest.raises(ProtocolError, match="over the limit"):
        encode_frame({"type": "t"}, body + b"x")


def test_what_is_too_large_is_refused_when_it_is_announced() -> None:
    cases: list[tuple[int, int]] = [(MAX_HEADER + 1, 0), (0, MAX_BODY + 1), (2**32 - 1, 2**32 - 1)]
    for announced in cases:
        parser = FrameParser()
        prefix = PREFIX.pack(*announced)
        for start in range(7):
            assert parser.feed(prefix[start : start + 1]) == []
        with pytest.raises(ProtocolError, match="announces"):
            parser.feed(prefix[7:])
        assert held(parser) < 1024


def test_a_header_may_be_nested_as_deep_as_its_limit_and_no_deeper() -> None:
    assert FrameParser().feed(encode_frame(nested(MAX_DEPTH)))[0].header == nested(MAX_DEPTH)
    with pytest.raises(ProtocolError, match="deep"):
        FrameParser().feed(frame(nested(MAX_DEPTH + 1)))
    with pytest.raises(ProtocolError, match="deep"):
        encode_frame(nested(MAX_DEPTH + 1))


def test_a_long_header_with_few_brackets_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[object] = []
    monkeypatch.setattr("cellblock.wire.frames._check_depth", walked.append)
    flat, many = {"type": "t", "value": [0] * 10_000}, {"type": "t", "value": [[]] * MAX_DEPTH}
    sent = [frame(flat), frame(many)]
    assert [FrameParser().feed(data)[0].header for data in sent] == [flat, many]
    assert walked == [many]


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), "\ud800", {"\ud800": 1}, {1, 2}, b"bytes", {(1, 2): 3}, 10**5000],
    ids=lambda value: type(value).__name__,
)
def test_a_header_that_nobody_would_take_is_not_made(value: object) -> None:
    with pytest.raises(ProtocolError, match="not valid JSON"):
        encode_frame({"type": "t", "x": value})


def test_a_header_that_holds_itself_or_never_ends_is_not_made() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(ProtocolError):
            encode_frame({"type": "t", "x": value})
    while isinstance(deep, list):  # or taking it down would need as deep a stack
        deep = deep.pop()


def test_a_parser_that_is_fed_byte_by_byte_keeps_no_more_than_it_was_fed() -> None:
    parser = FrameParser()
    raw = encode_frame({"type": "t"}, bytes(20_000))
    for index in range(len(raw) - 1):
        assert parser.feed(raw[index : index + 1]) == []
        assert held(parser) <= 1.2 * (index + 1) + 200
    assert len(parser.feed(raw[-1:])) == 1
    assert held(parser) < 200


def test_a_parser_keeps_less_than_one_frame_and_nothing_after_it() -> None:
    parser = FrameParser()
    raw = encode_frame({"type": "t"}, bytes(MAX_BODY))
    step = 256 * 1024
    most = 0
    frames = 0
    for _ in range(2):
        for start in range(0, len(raw), step):
            frames += len(parser.feed(raw[start : start + step]))
            most = max(most, held(parser))
    assert frames == 2
    assert most < 1.2 * len(raw)
    assert held(parser) < 1024


def test_a_body_is_a_copy_that_does_not_change_with_what_comes_later() -> None:
    parser = FrameParser()
    raw = frame({"type": "t"}, b"first") + frame({"type": "t"}, b"other")
    parser.feed(raw[:-1])
    assert parser.feed(raw[-1:])[0].body == b"other"
    first, other = FrameParser().feed(raw)
    assert (first.body, other.body) == (b"first", b"other")
