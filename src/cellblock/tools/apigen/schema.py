"""Parses the supported part of a JSON Schema.

The schema comes from an MCP server and is untrusted. Only the keywords below are read, and only if they are valid, so
nothing else in the schema has an effect. References must point into the same schema.

Drafts 4 to 2020-12: https://json-schema.org/specification-links
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import unquote

DEEPEST = 24
MOST_OPTIONS = 20
EMPTY: dict[str, Any] = {}

_LONGEST_PATTERN = 500
_LARGEST = 2**53  # beyond it, JSON numbers lose precision in some languages
_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))

# Keywords that restrict or extend a schema beyond the supported part.
_IGNORED = ("if", "then", "else", "dependentSchemas", "dependencies", "patternProperties", "propertyNames", "not")


@dataclass(slots=True)
class Node:
    """A schema with its references and ``allOf`` merged."""

    types: tuple[str, ...] | None = None
    properties: dict[str, Any] | None = None
    required: frozenset[str] = frozenset()
    additional: Any = None
    items: Any = None
    prefix: tuple[Any, ...] = ()
    options: tuple[Any, ...] = ()
    values: list[Any] | None = None
    bounds: dict[str, Any] = field(default_factory=dict)
    default: Any = None
    format: str = ""
    description: str = ""
    title: str = ""
    unique: bool = False
    step: Any = None
    open: bool = False

    def is_bare(self) -> bool:
        """Return whether it has only a type and a description."""
        said = (self.properties, self.required, self.items, self.prefix, self.values, self.bounds)
        return not any(said) and self.additional is None

    def may_be_object(self) -> bool:
        """Return whether an object can match it."""
        return self.types is None or "object" in self.types


def own(schema: dict[str, Any]) -> Node:
    """Parse the keywords of one schema, except references and ``allOf``."""
    kind = schema.get("type")
    types: list[Any] | None = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) and kind else None
    if types is not None and schema.get("nullable") is True:  # OpenAPI 3.0, and many servers
        types = [*types, "null"]
    known = tuple(dict.fromkeys(one for one in types or () if isinstance(one, str) and one in _TYPES))
    properties, required = schema.get("properties"), schema.get("required")
    items, prefix = schema.get("items"), schema.get("prefixItems")
    if isinstance(items, list):  # before 2020-12
        items, prefix = schema.get("additionalItems"), items
    values = schema.get("enum")
    if "const" in schema:
        values = [schema["const"]]
    additional = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    name = schema.get("format")
    return Node(
        types=known or None,
        properties=properties if isinstance(properties, dict) else None,
        required=frozenset(one for one in required if isinstance(one, str)) if isinstance(required, list) else frozenset(),
        additional=additional if isinstance(additional, dict | bool) else None,
        items=items if isinstance(items, dict) or items is False else None,
        prefix=tuple(prefix) if isinstance(prefix, list) else (),
        options=_first_list(schema.get("oneOf"), schema.get("anyOf")),
        values=values if isinstance(values, list) and values else None,
        bounds=dict(_bounds(schema)),
        default=schema.get("default"),
        format=name if isinstance(name, str) and re.fullmatch(r"[a-z0-9-]{1,32}", name) else "",
        description=schema["description"] if isinstance(schema.get("description"), str) else "",
        title=schema["title"] if isinstance(schema.get("title"), str) else "",
        unique=schema.get("uniqueItems") is True,
        step=schema["multipleOf"] if type(schema.get("multipleOf")) is float and is_number(schema["multipleOf"]) else None,
        open=any(key in schema for key in _IGNORED),
    )


def _bounds(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in ("minLength", "maxLength", "minItems", "maxItems"):
        value = schema.get(key)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is int and 0 <= value < 2**31:
            yield key, value
    for inclusive, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        # Draft 4 has a bound, and a flag that excludes it.
        key = exclusive if schema.get(exclusive) is True else inclusive
        if is_number(schema.get(inclusive)):
            yield key, schema[inclusive]
        if is_number(schema.get(exclusive)):
            yield exclusive, schema[exclusive]
    step = schema.get("multipleOf")
    if type(step) is int and 0 < step < _LARGEST:  # a fraction has no exact remainder
        yield "multipleOf", step
    if isinstance(pattern := schema.get("pattern"), str) and _compiles(pattern):
        yield "pattern", pattern


def _first_list(*values: Any) -> tuple[Any, ...]:
    return next((tuple(value) for value in values if isinstance(value, list) and value), ())


def is_number(value: Any) -> bool:
    """Return whether a value is a number with the same value in every language."""
    return type(value) in (int, float) and abs(value) < _LARGEST


def _compiles(pattern: str) -> bool:
    """Return whether pydantic accepts a pattern: JSON Schema's are JavaScript's, pydantic's are Rust's."""
    if len(pattern) > _LONGEST_PATTERN:
        return False
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern))
    except (SchemaError, UnicodeError):
        return False
    return True


def merged(one: Node, other: Node) -> Node:
    """Return the conjunction of two schemas. The first one's description precedes the second's."""
    properties = one.properties
    if other.properties is not None:
        properties = dict(one.properties or {})
        for key, schema in other.properties.items():
            same = key not in properties or properties[key] is schema or properties[key] == schema
            properties[key] = schema if same else {"allOf": [properties[key], schema]}
    types = one.types or other.types
    if one.types and other.types:
        types = tuple(kind for kind in one.types if kind in other.types) or one.types
    bounds = {**other.bounds, **one.bounds}
    for key in one.bounds.keys() & other.bounds.keys() - {"pattern", "multipleOf"}:
        tighter = max if key.startswith(("min", "exclusiveMin")) else min
        bounds[key] = tighter(one.bounds[key], other.bounds[key])
    return Node(
        types=types,
        properties=properties,
        required=one.required | other.required,
        additional=one.additional if one.additional is not None else other.additional,
        items=one.items if one.items is not None else other.items,
        prefix=one.prefix or other.prefix,
        options=one.options or other.options,
        values=one.values or other.values,
        bounds=bounds,
        default=one.default if one.default is not None else other.default,
        format=one.format or other.format,
        description=one.description or other.description,
        title=one.title or other.title,
        unique=one.unique or other.unique,
        step=one.step if one.step is not None else other.step,
        open=one.open or other.open,
    )


_MOST_NAMED = 1000
"""Definitions among which one is found by its anchor or ``$id``."""


def reference(schema: dict[str, Any]) -> str | None:
    """Return the target of a schema's reference, if it has one."""
    for key in ("$ref", "$dynamicRef", "$recursiveRef"):
        if isinstance(schema.get(key), str):
            return str(schema[key])
    return None


def resolved(document: Any, place: str) -> Any:
    """Resolve a reference in a document: a JSON pointer (RFC 6901), an anchor or the ``$id`` of a definition."""
    base = document.get("$id") if isinstance(document, dict) else None
    if isinstance(base, str) and base.rstrip("#") and place.startswith(base.rstrip("#")):
        place = place[len(base.rstrip("#")) :] or "#"
    if place in ("#", "#/"):
        return document
    if place.startswith("#/"):
        for step in unquote(place[2:]).split("/")[: 2 * DEEPEST]:
            document = _step(document, step.replace("~1", "/").replace("~0", "~"))
        return document
    # A search for each reference is too slow: hundreds of dangling references among half a million definitions take
    # minutes.
    named = islice(_definitions(document), _MOST_NAMED)
    return next((schema for schema in named if _is_named(schema, place)), None)


def cut(value: Any, depth: int) -> Any:
    """Return a part of a schema without its deepest levels, because Python's stack is limited."""
    if isinstance(value, dict):
        return {key: cut(item, depth - 1) for key, item in value.items()} if depth else None
    if isinstance(value, list | tuple):
        return [cut(item, depth - 1) for item in value] if depth else None
    return value


def _step(place: Any, step: str) -> Any:
    if isinstance(place, dict):
        return place.get(step)
    if isinstance(place, list) and step.isdecimal() and len(step) < 6 and int(step) < len(place):
        return place[int(step)]
    return None


def _definitions(document: Any) -> Iterator[dict[str, Any]]:
    for key in ("$defs", "definitions"):
        found = document.get(key) if isinstance(document, dict) else None
        if isinstance(found, dict):
            yield from (schema for schema in found.values() if isinstance(schema, dict))


def _is_named(schema: dict[str, Any], reference: str) -> bool:
    names = (schema.get("$id"), schema.get("id"))
    anchors = (schema.get("$anchor"), schema.get("$dynamicAnchor"))
    return reference in names or (reference.startswith("#") and reference[1:] in anchors)
