"""Routes of operations come from their declarations, and the description of the API keeps its names and shapes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cellblock.fronts.gateway.descriptions import documented
from cellblock.operations import OPERATIONS

SHAPES = "3b501fa70752"
"""A digest of what programs made from the description use: paths, functions, models and their fields"""


def names(schema: Any) -> str:
    """Return the model or the type that a schema stands for."""
    if "anyOf" in schema:
        return " | ".join(map(names, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list[{names(schema['items'])}]"
    return str(schema.get("$ref", schema.get("type", "any"))).rpartition("/")[2]


def content(part: dict[str, Any]) -> list[str]:
    """Return the models of a body or of an answer."""
    return [f"{kind} {names(one.get('schema', {}))}" for kind, one in sorted(part.get("content", {}).items())]


def shapes(document: dict[str, Any]) -> list[str]:
    """Return what programs made from the description use, line by line."""
    lines = []
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            taken = [f"{p['in']} {p['name']}{'!' * p['required']}" for p in one.get("parameters", ())]
            answers = [f"{status} {content(part)}" for status, part in sorted(one["responses"].items())]
            asked = [one["operationId"], *one["tags"], *taken, *content(one.get("requestBody", {})), *answers]
            lines.append(f"{method} {path}: {', '.join(asked)}")
    for name, schema in document["components"]["schemas"].items():
        needed = schema.get("required", ())
        fields = [f"{one}{'!' * (one in needed)}: {names(of)}" for one, of in schema.get("properties", {}).items()]
        lines.append(f"{name}: {', '.join(fields)}")
    return sorted(lines)


def test_names_and_shapes_of_the_api_change_on_purpose_only(document: dict[str, Any]) -> None:
    found = shapes(document)
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]
    assert digest == SHAPES, "write the new digest here if programs of others can live with this:\n" + "\n".join(found)


def test_times_have_two_formats_by_their_names(document: dict[str, Any]) -> None:
    """As docs/rest.md says: those that end in ``_at`` are texts, all others are numbers."""
    types = {
        (name, field): names(of)
        for name, schema in document["components"]["schemas"].items()
        for field, of in schema.get("properties", {}).items()
    }
    texts = {field for (_, field), kind in types.items() if field.endswith("_at") and kind.startswith("string")}
    numbers = {kind for (_, field), kind in types.items() if field in ("at", "since", "begun", "ended", "used", "modified")}
    assert texts == {"created_at", "last_used_at", "made_at"}
    assert numbers <= {"number", "number | null"}


WITH_ROUTES = {kind: kind.route for kind in OPERATIONS.values() if kind.route is not None}


def test_each_operation_with_a_route_has_it(document: dict[str, Any]) -> None:
    for kind, route in WITH_ROUTES.items():
        found = document["paths"][route.path.replace(":file", "")][route.method.lower()]
        assert (found["summary"], found["description"]) == (route.summary, documented(kind)[0])


def test_routes_name_fields_of_their_operations() -> None:
    for kind, route in WITH_ROUTES.items():
        assert {*route.places, *route.without} <= {*kind.__dataclass_fields__}, route.path  # type: ignore[attr-defined]


def test_what_docstrings_say_is_in_the_document(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["WantedUndo"]
    assert schema["properties"]["partial"]["description"].startswith("Whether to undo as far as possible")
    assert schema["properties"]["count"] | {"description": ""} == {
        "type": "integer",
        "title": "Count",
        "default": 1,
        "minimum": 1,
        "maximum": 1000,
        "description": "",
    }


def test_json_has_null_where_python_has_none(document: dict[str, Any]) -> None:
    assert "None" not in json.dumps(document["components"])
