"""Resolves the references of a schema and merges its parts, within a budget, because the schema is untrusted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cellblock.tools.apigen.schema import DEEPEST, EMPTY, MOST_OPTIONS, Node, merged, own, reference, resolved

_MOST_NODES = 10_000
TOO_LARGE = "it is too large"
_ELSEWHERE = "it refers to a missing definition"
NO_OBJECT = "it does not describe an object, as a tool's arguments require"


class Document:
    """A schema, and notes taken while it is read.

    Attributes:
        root: The schema.
        notes: Why the generated types allow more than the schema.
    """

    def __init__(self, root: object) -> None:
        self.root = root
        self.notes: dict[str, None] = {}
        self._left = _MOST_NODES

    def note(self, note: str) -> None:
        self.notes[note] = None

    def spend(self) -> bool:
        """Charge one part of the schema to the budget; return whether the budget allows it."""
        self._left -= 1
        return self._left >= 0

    def flat(self, schema: Any, seen: frozenset[int] = frozenset()) -> Node:
        """Return a schema with its references and ``allOf`` merged."""
        if not isinstance(schema, dict) or id(schema) in seen:
            return Node()
        if len(seen) == DEEPEST or not self.spend():
            self.note(TOO_LARGE)
            return Node(open=True)
        node = own(schema)
        seen |= {id(schema)}
        if (place := reference(schema)) is not None:
            node = merged(node, self.flat(self._resolve(place), seen))
        whole = schema.get("allOf")
        for part in whole[:MOST_OPTIONS] if isinstance(whole, list) else ():
            node = merged(node, self.flat(part, seen))
        return node

    def follow(self, schema: Any) -> Any:
        """Resolve a schema that is only a reference, so that the target keeps its class."""
        for _ in range(DEEPEST):
            if not isinstance(schema, dict) or reference(schema) is None or not own(schema).is_bare() or "allOf" in schema:
                break
            target = self._resolve(reference(schema))
            if not isinstance(target, dict) or target is schema:
                return EMPTY
            schema = target
        return schema

    def _resolve(self, place: str | None) -> Any:
        found = resolved(self.root, place or "")
        if not isinstance(found, dict | bool):
            self.note(_ELSEWHERE)
            return EMPTY
        return found

    def fold(self, node: Node, depth: int = 0) -> Node:
        """Merge several forms of an object: all their attributes; attributes required by all forms stay required."""
        if depth == DEEPEST:
            self.note(TOO_LARGE)
            return replace(node, options=(), open=True)
        forms = [self.flat(option) for option in node.options if option is not False]
        forms = [form for form in forms[:MOST_OPTIONS] if form.may_be_object()]
        forms = [self.fold(form, depth + 1) if form.options else form for form in forms]
        if not forms:
            self.note(NO_OBJECT)
            return replace(node, options=(), open=True)
        properties: dict[str, Any] = {}
        for form in forms:
            for key, schema in (form.properties or {}).items():
                known = properties.get(key)
                properties[key] = schema if known is None or known == schema else {"anyOf": [known, schema]}
        # The object's own schema of an attribute holds in every form.
        for key, schema in (node.properties or {}).items():
            properties[key] = schema if key not in properties else {"allOf": [schema, properties[key]]}
        return replace(
            node,
            options=(),
            properties=properties or node.properties,
            required=node.required | frozenset.intersection(*(form.required for form in forms)),
            # A form that only lists required attributes adds none.
            open=node.open or any(form.open or (form.properties is None and node.properties is None) for form in forms),
        )
