"""Displayed values: kept whole or dropped, measured with what they take, and shown in text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from cellblock.host.output.values import MOST_METADATA, Bundle, Value
from cellblock.model import is_text

LARGE = 2 * 1024 * 1024


class Spilled:
    """Where a value goes that is too large."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = 0

    def begin(self, pieces: Iterable[bytes | bytearray]) -> None:
        self.data = b"".join(pieces)

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.closed += 1


def value(mime: str, limit: int, pieces: Iterable[bytes]) -> tuple[Value, Spilled]:
    spilled = Spilled()
    made = Value(mime, limit, spilled)  # type: ignore[arg-type]
    for piece in pieces:
        made.add(piece)
        assert made.size <= limit
    return made, spilled


def bundle(data: dict[str, bytes], metadata: dict[str, Any] | None = None, room: int = 10**6) -> Bundle:
    return Bundle("display_data", data, metadata or {}, None, room, sum(map(len, data.values())))


@pytest.mark.parametrize("step", [1, 7, 100])
@pytest.mark.parametrize("mime", ["text/plain", "image/png"])
def test_a_value_within_its_limit_is_whole(mime: str, step: int) -> None:
    data = bytes(range(100))
    made, spilled = value(mime, 100, (data[start : start + step] for start in range(0, 100, step)))
    assert bytes(made.finish() or b"") == data
    assert (made.over, made.total, spilled.data) == (False, 100, b"")


@pytest.mark.parametrize("step", [1, 7, 200])
def test_of_text_the_beginning_and_the_end_are_kept_and_all_of_it_is_spilled(step: int) -> None:
    data = b"a" * 60 + b"b" * 80 + b"c" * 60
    made, spilled = value("text/plain", 100, (data[start : start + step] for start in range(0, 200, step)))
    kept = made.finish()
    assert kept is not None
    assert kept == b"a" * 50 + "\n… 100 bytes left out …\n".encode() + b"c" * 50
    assert (spilled.data, spilled.closed) == (data, 1)


def test_half_of_a_picture_is_of_no_use() -> None:
    made, spilled = value("image/png", 10, [b"x" * 8, b"y" * 8, b"z"])
    assert (made.finish(), made.size, made.total) == (None, 0, 17)
    assert spilled.data == b"x" * 8 + b"y" * 8 + b"z"


@pytest.mark.parametrize(
    ("mime", "text"),
    [
        ("text/html", True),
        ("application/vnd.x+json", True),
        ("image/svg+xml", True),
        ("image/png", False),
        ("application/pdf", False),
    ],
)
def test_types_are_text_or_bytes(mime: str, text: bool) -> None:
    assert is_text(mime) is text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"text/plain": b"plain", "text/html": b"<b>"}, "plain"),
        ({"image/png": b"x", "text/markdown": b"**b**"}, "**b**"),
        ({"text/html": b"<b>"}, "<b>"),
        ({"text/html": b"x" * LARGE}, "<text/html>"),  # nobody reads more of a page that a browser was to show
        ({"image/png": b"x", "image/jpeg": b"y"}, "<image/png, image/jpeg>"),
        ({"text/plain": b"a\xff"}, "a\ufffd"),
        ({}, None),
    ],
)
def test_a_reader_of_plain_text_sees_the_plainest_type(data: dict[str, bytes], text: str | None) -> None:
    shown = bundle(data)
    assert shown.item("display_data").text == text
    if b"\xff" not in b"".join(data.values()):
        assert shown.text == text


def test_bytes_that_are_no_text_do_not_hold_up_the_reader_of_a_stream() -> None:
    data = {"text/plain": b"\xff" * LARGE, "text/html": b"<b>"}
    assert bundle(data).text == "<b>"
    assert bundle(data).item("display_data").text == "\ufffd" * LARGE


@pytest.mark.parametrize("metadata", [{"a": [[]] * 10_000}, {"a": "x" * MOST_METADATA}, {"x" * MOST_METADATA: 1}])
def test_metadata_that_takes_too_much_is_left_out(metadata: dict[str, Any]) -> None:
    heavy = bundle({"text/plain": b"x"}, metadata)
    assert (heavy.heavy, heavy.metadata) == (True, {})
    light = bundle({"text/plain": b"x"}, {"a": 1})
    assert (light.heavy, light.metadata) == (False, {"a": 1})
    assert light.size > bundle({"text/plain": b"x"}).size


def test_an_error_is_its_text_and_nothing_else() -> None:
    item = bundle({"text/plain": b"Traceback", "image/png": b"x"}).item("error")
    assert (item.text, item.data) == ("Traceback", {})
