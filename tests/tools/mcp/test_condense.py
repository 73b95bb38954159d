"""Taking the result of a call out of a large message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock.tools.mcp import condense
from cellblock.tools.mcp.condense import LARGE, condensed, values_in

LIMIT = 1000


@pytest.mark.parametrize(
    ("message", "too_many"),
    [
        (b"[" + b"1," * LIMIT + b"1]", True),
        (b"[" + b"[]," * LIMIT + b"1]", True),
        (b'["' + b"," * 2 * LIMIT + b'"]', False),
        (b'["' + rb"\"," * LIMIT + b'"]', False),
        (b'["\\\\",' + b"1," * LIMIT + b"1]", True),
        (b'""' * 3 * LIMIT + b"," * (LIMIT + 1), True),
        (b"[1, 2]", False),
    ],
    ids=["numbers", "lists", "one text", "quotes in a text", "a backslash at the end of a text", "texts", "few"],
)
def test_values_are_counted_and_text_is_not(monkeypatch: pytest.MonkeyPatch, message: bytes, too_many: bool) -> None:
    monkeypatch.setattr(condense, "MAX_VALUES", LIMIT)
    assert (values_in(message) > LIMIT) is too_many


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


IMAGE = {"type": "image", "data": "", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("result", "short", "value"),
    [
        ({"content": [text("a"), IMAGE, text("ü\ud800")]}, {"content": [IMAGE]}, "a\nü\ud800"),
        ({"content": [text("[1]")], "structuredContent": {"n": [1]}, "x": 1}, {"content": [], "x": 1}, {"n": [1]}),
        ({"content": []}, {"content": []}, None),
        ({"content": [text("no")], "isError": True}, {"content": [text("no")], "isError": True}, "no"),
        ({"content": [{"type": "text"}, 5]}, {"content": [{"type": "text"}, 5]}, None),
    ],
    ids=["texts", "structured", "nothing", "an error", "what is not a block"],
)
def test_the_result_is_taken_out_of_the_message(result: dict[str, Any], short: dict[str, Any], value: Any) -> None:
    message = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"_meta": {LARGE: "its own"}, **result}}).encode()
    made, taken = condensed(message, "token")
    assert json.loads(made) == {"jsonrpc": "2.0", "id": 7, "result": {**short, "_meta": {LARGE: "token"}}}
    assert json.loads(taken) == value


def test_other_messages_stay_as_they_are() -> None:
    cases: list[Any] = [
        [],
        {"method": "notifications/message"},
        {"result": {"tools": []}},
        {"result": {"content": "text"}},
        {"result": {"content": [], "structuredContent": [1]}},
    ]
    for message in cases:
        assert condensed(json.dumps(message).encode(), "token") == (b"", b"")
