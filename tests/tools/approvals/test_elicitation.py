"""What servers ask people: what is left of a form, and what is an answer to it."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.errors import InvalidInputError
from cellblock.tools.approvals.elicitation import Elicitation, check_answer, read_elicitation

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "maxLength": 10, "default": "Ada"},
        "age": {"type": "integer", "minimum": 0},
        "share": {"type": "number", "default": "much"},
        "sure": {"type": "boolean", "default": True},
        "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["small", "large"]},
        "color": {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}]},
        "days": {"type": "array", "items": {"type": "string", "enum": ["mo", "tu"]}, "maxItems": 2},
        "mail": {"type": "string", "format": "email"},
    },
    "required": ["name", "unknown"],
}


def read(**fields: Any) -> Elicitation:
    return read_elicitation("desk", "Who?", {"type": "object", "properties": fields})


def test_a_form_arrives_without_what_is_not_part_of_one() -> None:
    seen = read_elicitation("desk", "Who?", {**FORM, "$ref": "file:///etc/passwd", "x": 1})
    assert {**seen.schema["properties"], "share": None} == {**FORM["properties"], "share": None}  # type: ignore[dict-item]
    assert seen.schema["properties"]["share"] == {"type": "number"}  # whose default is not one
    assert (seen.schema["required"], set(seen.schema)) == (["name"], {"type", "properties", "required"})
    assert read(a={"type": "string", "pattern": "^(a+)+$", "format": "cat"}).schema["properties"] == {"a": {"type": "string"}}
    assert str(seen) == "MCP server 'desk' asks: Who?"


def test_words_of_a_server_hide_nothing_and_have_an_end() -> None:
    seen = read_elicitation(
        "desk", "one\ntwo\x1b[2J\u202e" + "x" * 9000, {"properties": {"a": {"type": "string", "title": "\u200b"}}}
    )
    assert seen.message.startswith("one\ntwo\\x1b[2J\\u202exxx")
    assert len(seen.message) == 4000
    assert seen.schema["properties"]["a"]["title"] == "\\u200b"


def test_what_nobody_can_be_shown_is_refused() -> None:
    cases: list[Any] = [
        {"type": "object", "properties": {}},
        {"type": "array", "items": {"type": "string"}},
        {"type": ["string", "null"]},
        {},
        "string",
        {"type": "string", "enum": ["yes", "yes\u200b"]},
        {"type": "string", "enum": [1]},
        {"type": "string", "enum": ["a" * 301]},
        {"type": "string", "enum": [str(number) for number in range(101)]},
        {"type": "string", "oneOf": [{"const": "a\nb"}]},
    ]
    for field in cases:
        with pytest.raises(InvalidInputError):
            read(a=field)


def test_a_form_of_any_depth_is_looked_at() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(InvalidInputError, match="characters"):
        read(a={"type": "string", "more": deep})
    with pytest.raises(InvalidInputError, match="characters"):
        read(a={"type": "string", "enum": ["x"] * 200_000})


def test_forms_that_are_too_large_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="32 fields"):
        read(**{f"a{number}": {"type": "string"} for number in range(33)})
    with pytest.raises(InvalidInputError, match="16384 characters"):
        read(a={"type": "string", "title": "x" * 20_000})
    with pytest.raises(InvalidInputError, match="letters"):
        read(**{"a b": {"type": "string"}})


def test_an_answer() -> None:
    form = read_elicitation("desk", "Who?", FORM)
    answer = {
        "name": "Ada",
        "age": 36,
        "share": 0.5,
        "sure": True,
        "size": "s",
        "color": "#f00",
        "days": ["mo"],
        "mail": "a@b",
    }
    assert check_answer(form, answer) == answer
    assert check_answer(form, {"name": "Ada"}) == {"name": "Ada"}


def test_what_is_not_an_answer_to_the_form_is_refused() -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"name": 1},
        {"name": "Ada", "age": True},
        {"name": "Ada", "age": 1.5},
        {"name": "Ada", "sure": 1},
        {"name": "Ada", "share": float("nan")},
        {"name": "Ada", "size": "m"},
        {"name": "Ada", "color": "#0f0"},
        {"name": "Ada", "days": ["we"]},
        {"name": "Ada", "days": "mo"},
        {"name": "Ada", "more": "x"},
        {"name": "x" * 10_001},
    ]
    for answer in cases:
        with pytest.raises(InvalidInputError):
            check_answer(read_elicitation("desk", "Who?", FORM), answer)
