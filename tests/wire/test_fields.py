"""Text as bytes and back: nothing is refused that was not meant to arrive exactly."""

from __future__ import annotations

from cellblock.wire import fields


def test_text_with_lone_surrogates_is_escaped() -> None:
    assert fields.to_bytes("a\ud800") == b"a\\ud800"


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    assert fields.to_text(b"\xff") == "\ufffd"
