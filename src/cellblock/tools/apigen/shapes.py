"""Turns a JSON Schema into Python classes and annotations.

The output consists of text from this module, class names made here, and literals written by `repr`. Of the schema's own text,
only names and descriptions get through, as data. If types cannot express a schema, they allow more than the schema
does, never less, and a note says so: the server checks its arguments anyway.
"""

from __future__ import annotations

import ast
import json
import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from cellblock.tools.apigen.names import class_name, member_names
from cellblock.tools.apigen.schema import DEEPEST, EMPTY, MOST_OPTIONS, Node, is_number, merged, own, reference, resolved

_MOST_NODES = 10_000
_MOST_CLASSES = 100
_MOST_PROPERTIES = 300
_MOST_VALUES = 200
_LONGEST_NAME = 200
_LONGEST_VALUE = 200

_TYPES = {"string": "str", "integer": "int", "number": "int | float", "boolean": "bool", "null": "None"}

_ARGUMENTS = {
    "string": (("minLength", "min_length"), ("maxLength", "max_length"), ("pattern", "pattern")),
    "array": (("minItems", "min_length"), ("maxItems", "max_length")),
}
_ARGUMENTS["integer"] = _ARGUMENTS["number"] = (
    ("minimum", "ge"),
    ("exclusiveMinimum", "gt"),
    ("maximum", "le"),
    ("exclusiveMaximum", "lt"),
    ("multipleOf", "multiple_of"),
)

_TOO_LARGE = "it is too large to follow to its end"
_ELSEWHERE = "it refers to something that is not in it"
_ROUND = "it refers to itself where Python's types cannot"
_VALUES = "it lists values that Python's Literal cannot"
_NAMES = "it has names that cannot be given to attributes"
_NO_OBJECT = "it does not describe an object, which the arguments of a tool are"


@dataclass(frozen=True, slots=True)
class Property:
    """One attribute of a class.

    Attributes:
        name: What JSON calls it.
        annotation: Its type, as source.
        default: Its default, as source; None if a value is required.
        description: The server's words.
        nullable: Whether it is optional, and null is a value of it.
    """

    name: str
    annotation: str
    default: str | None
    description: str
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """A class.

    Attributes:
        name: Its name.
        properties: Its attributes.
        extra: Whether an object may have others.
        description: The server's words.
        root: The type of a value that is not an object, as source.
        values: The values of an enumeration.
        strict: Whether it is for arguments.
    """

    name: str
    properties: tuple[Property, ...] = ()
    extra: bool = True
    description: str = ""
    root: str | None = None
    values: tuple[str, ...] = ()
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a schema says: its classes, the one for the whole of it first.

    Attributes:
        classes: The classes.
        notes: Where they allow more than the schema.
    """

    classes: tuple[Shape, ...]
    notes: tuple[str, ...] = ()


def read_params(schema: object) -> Shapes:
    """Read the schema of a tool's arguments.

    Args:
        schema: Whatever the server sent.

    Returns:
        Classes, the first of which is ``Params``, with the constraints of the schema. An argument that is not in the schema
        is refused unless the schema says that there are others.
    """
    return _Reader(schema, "Params", set(), strict=True).read()


def read_result(schema: object, taken: set[str]) -> Shapes:
    """Read the schema of what a tool returns.

    Args:
        schema: Whatever the server sent.
        taken: Names of classes that are in the module already.

    Returns:
        Classes, the first of which is ``Result``, without constraints: the host has held the result to its schema.
    """
    return _Reader(schema, "Result", taken, strict=False).read()


class _Reader:
    """Reads one schema, breadth first, within a budget."""

    def __init__(self, document: object, name: str, taken: set[str], *, strict: bool) -> None:
        self._document = document
        self._root = name
        self._strict = strict
        self._taken = taken | {"Params", "Result"}
        self._left = _MOST_NODES
        self._notes: dict[str, None] = {}
        # Schemas are told apart by where they are in memory; those that are made on the way are kept, so that none takes
        # the place of another.
        self._classes: dict[tuple[int, int], str] = {}
        self._kept: list[Any] = []
        self._todo: deque[tuple[str, Node, int]] = deque()
        self._enums: dict[tuple[str, ...], str] = {}
        self._depth = 0  # how many classes lead to the one that is read

    def read(self) -> Shapes:
        root = self._flat(self._document)
        if root.may_be_object():
            # Several forms of an object become one with the attributes of all, so that there is something to call.
            if root.options:
                root = self._fold(root)
            for schema in (self._document, self._follow(self._document)):
                if isinstance(schema, dict) and schema:
                    self._classes[id(schema), 0] = self._root
            self._todo.append((self._root, root, 0))
            first: list[Shape] = []
        elif self._strict:
            self._note(_NO_OBJECT)
            first = [Shape(self._root)]
        else:
            annotation = " | ".join(self._annotation(self._document, self._root, frozenset()))
            first = [Shape(self._root, description=root.description, root=annotation, strict=False)]
        shapes = first
        while self._todo:
            name, node, self._depth = self._todo.popleft()
            shapes.append(self._shape(name, node))
        enums = [Shape(name, values=values) for values, name in self._enums.items()]
        return Shapes((*_merged_equal(shapes), *enums), tuple(self._notes))

    def _note(self, note: str) -> None:
        self._notes[note] = None

    def _shape(self, name: str, node: Node) -> Shape:
        properties: list[Property] = []
        dropped = False
        declared = node.properties or {}
        for key in [*declared, *sorted(node.required - set(declared))]:
            if len(properties) == _MOST_PROPERTIES or not self._spend():
                self._note(_TOO_LARGE)
                dropped = True
                break
            if len(key) > _LONGEST_NAME or not _is_text(key):
                self._note(_NAMES)
                dropped = True
                continue
            properties.append(self._property(key, declared.get(key), required=key in node.required))
        closed = node.additional is False or (node.additional is None and node.properties is not None)
        extra = not (self._strict and closed) or node.open or dropped
        return Shape(name, tuple(properties), extra, node.description, strict=self._strict)

    def _property(self, key: str, schema: Any, *, required: bool) -> Property:
        node = self._flat(schema)
        parts = self._annotation(schema, key, frozenset())
        nullable = "None" in parts or parts == ["Any"]
        default = None
        said: list[Any] = [] if node.default is None else [node.default]
        if required:
            # A constant can only be what it is: it is sent without being given.
            if self._strict and (constant := _constant(node)) is not None and parts == [f"Literal[{constant}]"]:
                default, said = constant, []
        else:
            default = self._default(node.default, parts)
            if default != "None":
                said = []
            elif not nullable:
                parts = [*parts, "None"]
        description = " ".join(
            [node.description, *self._remarks(node), *(f"Default: {_json(value)}" for value in said)]
        ).strip()
        return Property(key, " | ".join(parts), default, description, nullable=self._strict and nullable and not required)

    def _default(self, default: Any, parts: list[str]) -> str:
        """Return a default as source, `None` if it cannot be said."""
        for values, name in self._enums.items():
            if name in parts and type(default) is str and default in values:
                return f"{name}.{member_names(values)[default]}"
        return _source_of(default, parts)

    def _remarks(self, node: Node) -> list[str]:
        """Return what types do not say of a value: what it is made of, and what its forms are called."""
        remarks = []
        if node.format and node.format not in node.description:
            remarks.append(f"({node.format})")
        if self._strict and node.step is not None:
            remarks.append(f"(a multiple of {node.step!r})")
        if self._strict and node.unique:
            remarks.append("(no duplicates)")
        items = self._flat(node.items) if isinstance(node.items, dict) else Node()
        # Of an object the words are at its class.
        if items.description and not items.properties:
            remarks.append(f"Each: {items.description}")
        forms = [self._flat(option) for option in node.options[:MOST_OPTIONS]]
        words = [form.description or form.title for form in forms if not form.properties]
        if len(words := [word for word in dict.fromkeys(words) if word and word not in node.description]) > 0:
            remarks.append(f"One of: {'; '.join(words)}")
        return remarks

    def _annotation(self, schema: Any, hint: str, path: frozenset[int]) -> list[str]:
        """Return the members of the union that a schema is, as source."""
        schema, hint = self._follow(schema), self._hint(schema, hint)
        if known := self._classes.get((id(schema), 0)):
            return [known]
        if not isinstance(schema, dict) or not schema:
            return ["Any"]
        if id(schema) in path:
            self._note(_ROUND)
            return ["Any"]
        if len(path) == DEEPEST or not self._spend():
            self._note(_TOO_LARGE)
            return ["Any"]
        path |= {id(schema)}
        self._kept.append(schema)
        node = self._flat(schema)
        if node.options and node.properties and node.may_be_object():
            node = self._fold(node)
        parts: list[str] = []
        if node.options:
            for number, option in enumerate(node.options[:MOST_OPTIONS]):
                parts += self._option(schema, node, number, option, hint, path)
            if len(node.options) > MOST_OPTIONS:
                self._note(_TOO_LARGE)
                parts = ["Any"]
        else:
            parts = self._typed(node, (id(schema), 0), hint, path)
        return ["Any"] if "Any" in parts else list(dict.fromkeys(parts))

    def _option(self, schema: Any, base: Node, number: int, option: Any, hint: str, path: frozenset[int]) -> list[str]:
        if base.is_bare() and (base.types is None or self._flat(option).types is not None):
            return self._annotation(option, hint, path)
        node = merged(self._flat(option), replace(base, options=()))
        key = (id(schema), number + 1)
        return [self._classes[key]] if key in self._classes else self._typed(replace(node, options=()), key, hint, path)

    def _typed(self, node: Node, key: tuple[int, int], hint: str, path: frozenset[int]) -> list[str]:
        if node.values is not None:
            if self._strict and (name := self._enum(node.values, hint)) is not None:
                return [name, *(["None"] if None in node.values else [])]
            if literal := _literal(node.values):
                return literal
            self._note(_VALUES)
        types = node.types
        if types is None:
            types = ("object",) if node.properties is not None else ("array",) if node.items or node.prefix else ()
        parts = []
        for kind in types:
            if kind == "object":
                parts.append(self._object(node, key, hint, path))
            elif kind == "array":
                parts.append(self._constrained(self._array(node, hint, path), node, "array"))
            else:
                parts.append(self._constrained(_TYPES[kind], node, kind))
        return parts or ["Any"]

    def _enum(self, values: list[Any], hint: str) -> str | None:
        """Return the class of an enumeration of strings; None if it is another one, or too large for a class."""
        texts = [value for value in values if value is not None]
        if not all(type(value) is str for value in texts) or _literal(texts) is None:
            return None
        words = tuple(dict.fromkeys(texts))
        if len(words) < 2:
            return None
        if words not in self._enums:
            self._enums[words] = class_name(hint, self._taken)
            self._taken.add(self._enums[words])
        return self._enums[words]

    def _object(self, node: Node, key: tuple[int, int], hint: str, path: frozenset[int]) -> str:
        if not node.properties:
            values = ["Any"]
            if isinstance(node.additional, dict) and not node.open:
                values = self._annotation(node.additional, f"{hint} value", path)
            return f"dict[str, {' | '.join(values)}]"
        # pydantic builds a class within the one that uses it, and Python's stack has an end.
        if len(self._classes) >= _MOST_CLASSES or self._depth == DEEPEST:
            self._note(_TOO_LARGE)
            return "dict[str, Any]"
        name = class_name(hint, self._taken)
        self._taken.add(name)
        self._classes[key] = name
        self._todo.append((name, node, self._depth + 1))
        return name

    def _array(self, node: Node, hint: str, path: frozenset[int]) -> str:
        hint = f"{hint} item"
        first = [self._annotation(item, hint, path) for item in node.prefix[:MOST_OPTIONS]]
        least, most = node.bounds.get("minItems", 0), node.bounds.get("maxItems", math.inf)
        if node.items is False:
            most = min(most, len(node.prefix))
        if first and least == most == len(node.prefix) == len(first):
            return f"tuple[{', '.join(' | '.join(parts) for parts in first)}]"
        rest = [["Any"]] if len(first) < len(node.prefix) else []
        if most > len(node.prefix):
            rest = [self._annotation(node.items, hint, path)]
        parts = dict.fromkeys(part for parts in [*first, *rest] for part in parts)
        return f"list[{'Any' if 'Any' in parts or not parts else ' | '.join(parts)}]"

    def _constrained(self, annotation: str, node: Node, kind: str) -> str:
        if not self._strict or annotation.startswith("tuple["):
            return annotation
        bounds = [(keyword, argument) for keyword, argument in _ARGUMENTS.get(kind, ()) if keyword in node.bounds]
        if kind == "integer":  # pydantic wants integers for bounds of integers
            bounds = [bound for bound in bounds if node.bounds[bound[0]] == int(node.bounds[bound[0]])]
        arguments = [f"{argument}={_plain(node.bounds[keyword])!r}" for keyword, argument in bounds]
        return f"Annotated[{annotation}, Field({', '.join(arguments)})]" if arguments else annotation

    def _fold(self, node: Node, depth: int = 0) -> Node:
        """Make one object of several forms of it: all their attributes, of which those are required that all require."""
        if depth == DEEPEST:
            self._note(_TOO_LARGE)
            return replace(node, options=(), open=True)
        forms = [self._flat(option) for option in node.options if option is not False]
        forms = [form for form in forms[:MOST_OPTIONS] if form.may_be_object()]
        forms = [self._fold(form, depth + 1) if form.options else form for form in forms]
        if not forms:
            self._note(_NO_OBJECT)
            return replace(node, options=(), open=True)
        properties: dict[str, Any] = {}
        for form in forms:
            for key, schema in (form.properties or {}).items():
                known = properties.get(key)
                properties[key] = schema if known is None or known == schema else {"anyOf": [known, schema]}
        # What the object says of an attribute itself holds in every form.
        for key, schema in (node.properties or {}).items():
            properties[key] = schema if key not in properties else {"allOf": [schema, properties[key]]}
        return replace(
            node,
            options=(),
            properties=properties or node.properties,
            required=node.required | frozenset.intersection(*(form.required for form in forms)),
            # A form that only says what is required adds no attributes.
            open=node.open or any(form.open or (form.properties is None and node.properties is None) for form in forms),
        )

    def _spend(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def _hint(self, schema: Any, hint: str) -> str:
        place = reference(schema) if isinstance(schema, dict) else None
        return place.rpartition("/")[2] or hint if place else hint

    def _follow(self, schema: Any) -> Any:
        """Return what a schema that is nothing but a reference leads to, so that it keeps its class."""
        for _ in range(DEEPEST):
            if not isinstance(schema, dict) or reference(schema) is None or not own(schema).is_bare() or "allOf" in schema:
                break
            target = self._resolve(reference(schema))
            if not isinstance(target, dict) or target is schema:
                return EMPTY
            schema = target
        return schema

    def _flat(self, schema: Any, seen: frozenset[int] = frozenset()) -> Node:
        if not isinstance(schema, dict) or id(schema) in seen:
            return Node()
        if len(seen) == DEEPEST or not self._spend():
            self._note(_TOO_LARGE)
            return Node(open=True)
        node = own(schema)
        seen |= {id(schema)}
        if (place := reference(schema)) is not None:
            node = merged(node, self._flat(self._resolve(place), seen))
        whole = schema.get("allOf")
        for part in whole[:MOST_OPTIONS] if isinstance(whole, list) else ():
            node = merged(node, self._flat(part, seen))
        return node

    def _resolve(self, place: str | None) -> Any:
        found = resolved(self._document, place or "")
        if not isinstance(found, dict | bool):
            self._note(_ELSEWHERE)
            return EMPTY
        return found


def _merged_equal(shapes: list[Shape]) -> list[Shape]:
    """Return shapes without those that are equal to another one, which takes their place."""
    while True:
        first: dict[Any, str] = {}
        same = {}
        for shape in shapes:
            what = (shape.properties, shape.extra, shape.description, shape.root)
            if shape.name not in ("Params", "Result") and first.setdefault(what, shape.name) != shape.name:
                same[shape.name] = first[what]
        if not same:
            return shapes
        shapes = [
            replace(
                shape,
                root=shape.root and _renamed(shape.root, same),
                properties=tuple(replace(one, annotation=_renamed(one.annotation, same)) for one in shape.properties),
            )
            for shape in shapes
            if shape.name not in same
        ]


def _renamed(annotation: str, names: dict[str, str]) -> str:
    """Return an annotation with other names of classes, those in strings left alone."""
    tree = ast.parse(annotation, mode="eval")
    if not any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(tree)):
        return annotation
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.unparse(tree)


def _constant(node: Node) -> str | None:
    """Return the one value that something can have, as source."""
    values = list(dict.fromkeys(map(repr, node.values or ())))
    return values[0] if len(values) == 1 and node.values != [None] else None


def _literal(values: list[Any]) -> list[str] | None:
    """Return the members of a union for listed values, or None where they cannot be said."""
    if len(values) > _MOST_VALUES or not all(type(value) in (str, int, bool, type(None)) for value in values):
        return None
    if any(type(value) is str and (len(value) > _LONGEST_VALUE or not _is_text(value)) for value in values):
        return None
    if any(type(value) is int and not is_number(value) for value in values):
        return None
    listed = dict.fromkeys(repr(value) for value in values if value is not None)
    return [*([f"Literal[{', '.join(listed)}]"] if listed else []), *(["None"] if None in values else [])]


def _source_of(default: Any, parts: list[str]) -> str:
    """Return a default as source: the schema's if it is simple and one of its type, else None."""
    kind = type(default)
    if (kind is str and (len(default) > _LONGEST_VALUE or not _is_text(default))) or (
        kind in (int, float) and not is_number(default)
    ):
        return "None"
    wanted = {str: ("str",), int: ("int", "int | float"), float: ("int | float",), bool: ("bool",)}.get(kind, ())
    for part in parts:
        if part in wanted or any(part.startswith(f"Annotated[{plain}, ") for plain in wanted):
            return repr(default)
        if part.startswith("Literal["):
            listed = ast.literal_eval(f"({part[8:-1]},)")
            if any(type(value) is kind and value == default for value in listed):
                return repr(default)
    return "None"


def _is_text(value: str) -> bool:
    """Whether a string can be sent: JSON can hold halves of surrogate pairs, UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any) -> Any:
    """A whole number as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
