"""A schema as a whole: references followed, parts merged, all of it within a budget."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.tools.apigen import document
from cellblock.tools.apigen.document import NO_OBJECT, TOO_LARGE, Document
from cellblock.tools.apigen.schema import EMPTY


def test_references_and_parts_are_merged_into_one() -> None:
    schema = {
        "$ref": "#/$defs/base",
        "allOf": [{"properties": {"b": {"type": "string"}}, "required": ["b"]}],
        "$defs": {"base": {"type": "object", "properties": {"a": {}}, "required": ["a"]}},
    }
    node = Document(schema).flat(schema)
    assert node.types == ("object",)
    assert node.properties is not None
    assert {*node.properties} == {"a", "b"}
    assert node.required == {"a", "b"}


def test_a_schema_that_is_part_of_itself_comes_to_an_end() -> None:
    schema: dict[str, Any] = {"allOf": [{"$ref": "#"}], "type": "object"}
    reader = Document(schema)
    assert reader.flat(schema).types == ("object",)
    assert reader.follow({"$ref": "#"}) is schema


def test_what_is_elsewhere_is_noted_and_says_nothing() -> None:
    for place in ("#/nowhere", "other.json#/a", "https://a.example/schema"):
        reader = Document({"$ref": place})
        assert reader.follow(reader.root) is EMPTY
        assert [*reader.notes] == ["it refers to a missing definition"]


def test_the_budget_ends_what_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_MOST_NODES", 3)
    reader = Document({})
    assert [reader.flat({"type": "string"}).open for _ in range(4)] == [False, False, False, True]
    assert [*reader.notes] == [TOO_LARGE]


def test_several_forms_of_an_object_become_one_with_the_attributes_of_all() -> None:
    schema = {
        "anyOf": [
            {"type": "object", "properties": {"a": {"type": "string"}, "c": {}}, "required": ["a", "c"]},
            {"type": "object", "properties": {"b": {}, "c": {}}, "required": ["c"]},
            {"type": "string"},
        ]
    }
    reader = Document(schema)
    node = reader.fold(reader.flat(schema))
    assert node.properties is not None
    assert {*node.properties} == {"a", "b", "c"}
    assert node.required == {"c"}
    assert not node.options
    assert not reader.notes


def test_forms_none_of_which_is_an_object_are_noted() -> None:
    schema = {"anyOf": [{"type": "string"}, False]}
    reader = Document(schema)
    assert reader.fold(reader.flat(schema)).open
    assert [*reader.notes] == [NO_OBJECT]


def test_forms_within_forms_come_to_an_end() -> None:
    schema: dict[str, Any] = {}
    schema["anyOf"] = [schema]
    reader = Document(schema)
    assert reader.fold(reader.flat(schema)).open
    assert TOO_LARGE in reader.notes
