"""Values of a schema as source: only literals that mean the same, or none."""

from __future__ import annotations

import ast
import math
from typing import Any

from cellblock.tools.apigen.schema import Node
from cellblock.tools.apigen.values import is_text, json_text, literal_of, only_value, plain_number, source_of


def test_a_constant_is_the_only_value() -> None:
    cases: list[tuple[list[Any] | None, str | None]] = [
        (["a"], "'a'"),
        (["a", "a"], "'a'"),
        ([1], "1"),
        (["a", "b"], None),
        ([None], None),
        ([], None),
        (None, None),
    ]
    for values, source in cases:
        assert only_value(Node(values=values)) == source


def test_listed_values_are_a_literal_or_cannot_be_said() -> None:
    cases: list[tuple[list[Any], list[str] | None]] = [
        (["a", "b", "a"], ["Literal['a', 'b']"]),
        ([1, True], ["Literal[1, True]"]),
        (["a", None], ["Literal['a']", "None"]),
        ([None], ["None"]),
        ([1.5], None),
        ([["a"]], None),
        (["\ud800"], None),
        (["x" * 201], None),
        ([2**60], None),
        ([str(number) for number in range(201)], None),
    ]
    for values, members in cases:
        assert literal_of(values) == members


def test_a_value_cannot_leave_its_literal() -> None:
    for text in ("'] | __import__('os')", '"', "\\", "a\nb", "]"):
        found = literal_of([text])
        assert found is not None
        assert ast.literal_eval(f"({found[0].removeprefix('Literal[').removesuffix(']')},)") == (text,)


def test_a_default_is_said_if_it_is_simple_and_of_its_type() -> None:
    cases: list[tuple[Any, list[str], str]] = [
        ("a", ["str"], "'a'"),
        ("a", ["Annotated[str, Field(max_length=3)]"], "'a'"),
        ("a", ["Literal['a', 'b']"], "'a'"),
        ("c", ["Literal['a', 'b']"], "None"),
        (1, ["int"], "1"),
        (1, ["int | float"], "1"),
        (1.5, ["int"], "None"),
        (1.5, ["int | float"], "1.5"),
        (True, ["int"], "None"),
        (True, ["bool"], "True"),
        (1, ["Literal[True]"], "None"),
        ("a", ["int"], "None"),
        ([], ["list[str]"], "None"),
        (math.inf, ["int | float"], "None"),
        ("\ud800", ["str"], "None"),
        ("x" * 201, ["str"], "None"),
        (None, ["str"], "None"),
    ]
    for default, parts, source in cases:
        assert source_of(default, parts) == source


def test_texts_and_numbers() -> None:
    assert (is_text("ü"), is_text("\udc00")) == (True, False)
    assert [repr(plain_number(value)) for value in (1.0, 1.5, "a")] == ["1", "1.5", "'a'"]
    assert json_text({"a": "ü"}) == '{"a": "ü"}'
    assert len(json_text("x" * 1000)) == 201
