"""Forms of MCP servers, as a person fills them in."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.fronts.cli.forms import fields_of, read_answer, read_line


def question(**fields: Any) -> dict[str, Any]:
    return {"arguments": {"schema": {"type": "object", "properties": fields, "required": ["a"]}}}


TEXT = {"type": "string"}


def test_the_fields_are_on_one_line() -> None:
    asked = question(a=TEXT, b={"type": "string", "enum": ["x", "y\x1b"]}, c={"type": "integer"})
    assert fields_of(asked) == "a: string; b: x|y\\x1b, optional; c: integer, optional"


def test_a_line_is_the_value_of_the_only_field() -> None:
    cases: list[tuple[dict[str, Any], str, Any]] = [
        (TEXT, " main ", "main"),
        (TEXT, "5", "5"),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "n", False),
        ({"type": "boolean"}, "true", True),
        ({"type": "integer"}, "5", 5),
        ({"type": "number"}, "0.5", 0.5),
        ({"type": "array"}, "x, y", ["x", "y"]),
        (TEXT, '{"a": "b"}', "b"),
    ]
    for field, typed, value in cases:
        assert read_line(question(a=field), typed) == {"a": value}


def test_of_several_fields_a_line_is_json() -> None:
    assert read_line(question(a=TEXT, b=TEXT), '{"a": "x"}') == {"a": "x"}
    with pytest.raises(InvalidInputError, match="JSON object"):
        read_line(question(a=TEXT, b=TEXT), "x")


def test_what_is_not_an_answer() -> None:
    for typed in ("", "nonsense", "[]", "[" * 100_000):
        with pytest.raises(InvalidInputError, match="JSON object"):
            read_answer(typed)
        with pytest.raises(InvalidInputError):
            read_line(question(a={"type": "integer"}, b=TEXT), typed)
