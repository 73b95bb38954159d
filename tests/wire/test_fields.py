"""Fields of a frame: of their type and within their limits, or a violation that names them."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.errors import ProtocolError
from cellblock.wire import fields
from cellblock.wire.fields import MAX_ARGUMENTS, MAX_CODE, MAX_MIMES, MAX_NUMBER, MAX_TEXT, PIECE, Fields
from cellblock.wire.frames import Frame


def of(body: bytes = b"", **header: Any) -> Fields:
    return Fields(Frame({"type": "x", **header}, body))


@pytest.mark.parametrize(
    ("sizes", "body", "buffers"),
    [([], b"", []), ([3], b"abc", [b"abc"]), ([1, 0, 2], b"abc", [b"a", b"", b"bc"])],
)
def test_a_body_is_cut_by_its_sizes(sizes: list[int], body: bytes, buffers: list[bytes]) -> None:
    assert [bytes(buffer) for buffer in of(body, sizes=sizes).buffers] == buffers


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ([1], "add up to 1, the body has 3"),
        ([], "add up to 0"),
        ([4, -1], "list of lengths"),
        ([True, 2], "list of lengths"),
        ("3", "list of lengths"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: object, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=f"x: sizes .*{complaint}"):
        of(b"abc", sizes=sizes)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        ("boolean", 1),
        ("integer", True),
        ("integer", -1),
        ("integer", MAX_NUMBER + 1),
        ("integer", 1.0),
        ("text", "x" * (MAX_TEXT + 1)),
        ("text", None),
        ("optional_text", 1),
        ("mapping", []),
    ],
)
def test_a_field_of_the_wrong_type_or_size_is_named(read: str, value: object) -> None:
    with pytest.raises(ProtocolError, match="x: field must be"):
        getattr(of(field=value), read)("field")


def test_what_is_missing_is_false_empty_or_a_violation() -> None:
    given = of()
    assert (given.boolean("a"), given.mapping("a"), given.texts("a", 3), given.optional_text("a")) == (False, {}, (), None)
    assert given.optional_buffer_text() is None
    for read in (given.integer, given.text):
        with pytest.raises(ProtocolError):
            read("a")
    with pytest.raises(ProtocolError, match="one length"):
        given.buffer()


def test_choices_and_counts_are_limits() -> None:
    given = of(name="stdin", list=["a"] * 4, odd=["a", 1])
    for read in (
        lambda: given.text("name", ("stdout", "stderr")),
        lambda: given.texts("list", 3),
        lambda: given.texts("odd", 3),
    ):
        with pytest.raises(ProtocolError):
            read()
    assert given.texts("list", 4) == ("a",) * 4


def test_buffers_have_limits_and_bytes_that_are_no_text_are_replaced() -> None:
    assert of(b"\xff", sizes=[1]).optional_buffer_text() == "\ufffd"
    with pytest.raises(ProtocolError, match=f"at most {PIECE}"):
        of(b"x" * (PIECE + 1), sizes=[PIECE + 1]).piece()
    with pytest.raises(ProtocolError, match=f"at most {MAX_CODE} bytes"):
        of(b"x" * (MAX_CODE + 1), sizes=[MAX_CODE + 1]).code()


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda n: fields.arguments(("a",) * n), MAX_ARGUMENTS),
        (lambda n: fields.short(["a"] * n), MAX_MIMES),
        (lambda n: fields.short(["a" * n]), MAX_TEXT),
        (lambda n: fields.within(10, [b"x" * n]), 10),
        (lambda n: fields.piece(b"x" * n), PIECE),
        (lambda n: fields.code("x" * n), MAX_CODE),
    ],
    ids=["arguments", "mimes", "text", "within", "piece", "code"],
)
def test_a_sender_is_held_to_the_same_limits(make: Any, limit: int) -> None:
    make(limit)
    with pytest.raises(ProtocolError):
        make(limit + 1)


def test_text_that_must_arrive_as_it_is_has_no_lone_surrogate() -> None:
    with pytest.raises(ProtocolError, match="not UTF-8"):
        fields.strictly("a\ud800")
    assert fields.to_bytes("a\ud800") == b"a\\ud800"
