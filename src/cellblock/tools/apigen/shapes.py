"""Converts a JSON Schema to Python classes and annotations.

The output consists of text from this module, class names generated here, and literals written by `repr`. From the schema,
it contains only names and descriptions, as data. If types cannot express a schema, they allow more, never less, and a note
says so. The server validates its arguments anyway.
"""

from __future__ import annotations

import ast
import math
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, fields, replace
from typing import Any

from cellblock.tools.apigen.document import NO_OBJECT, TOO_LARGE, Document
from cellblock.tools.apigen.names import class_name, member_names, with_digest
from cellblock.tools.apigen.schema import DEEPEST, MOST_OPTIONS, Node, cut, merged, own, reference
from cellblock.tools.apigen.values import is_text, json_text, literal_of, only_value, plain_number, source_of

_MOST_CLASSES = 100
_MOST_PROPERTIES = 300
_LONGEST_NAME = 200
_DEEPEST_CONTENT = 8 * DEEPEST  # levels of a schema that distinguish classes; each class takes two or three

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

_ROUND = "it refers to itself where Python's types do not allow it"
_VALUES = "it lists values that Python's Literal does not support"
_NAMES = "it has names that attributes cannot have"


@dataclass(frozen=True, slots=True)
class Property:
    """An attribute of a class.

    Attributes:
        name: The JSON name.
        annotation: The type, as source.
        default: The default, as source; None if a value is required.
        description: The server's description.
        nullable: Whether the attribute is optional and accepts null.
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
        name: The name.
        properties: The attributes.
        extra: Whether an object may have additional attributes.
        description: The server's description.
        root: The type of a value that is not an object, as source.
        values: The values of an enumeration.
        strict: Whether the class is for arguments.
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
    """The classes of a schema; the first represents the whole schema.

    Attributes:
        classes: The classes.
        notes: How they allow more than the schema.
    """

    classes: tuple[Shape, ...]
    notes: tuple[str, ...] = ()


def read_params(schema: object) -> Shapes:
    """Convert the schema of a tool's arguments.

    Args:
        schema: The server's data.

    Returns:
        Classes with the constraints of the schema; the first is ``Params``. Arguments outside the schema are refused unless
        the schema allows others.
    """
    return _read(schema, "Params", frozenset(), strict=True)


def read_result(schema: object, taken: Set[str]) -> Shapes:
    """Convert the schema of a tool's result.

    Args:
        schema: The server's data.
        taken: Existing class names of the module.

    Returns:
        Classes without constraints, because the host has validated the result; the first is ``Result``.
    """
    return _read(schema, "Result", taken, strict=False)


def _read(schema: object, name: str, taken: Set[str], *, strict: bool) -> Shapes:
    reader = _Reader(schema, name, taken, frozenset(), strict=strict)
    shapes = reader.read()
    if reader.ambiguous:
        # Names shared by several classes are known only now: none of the classes gets such a name.
        shapes = _Reader(schema, name, taken, reader.ambiguous, strict=strict).read()
    return shapes


class _Reader:
    """A breadth-first reader of one schema, within a budget.

    Args:
        document: The schema.
        name: The name of the first class.
        taken: Existing class names of the module.
        ambiguous: Names that several classes would share. Each of these classes is named with a digest of its content.
        strict: Whether the classes are for arguments.
    """

    def __init__(self, document: object, name: str, taken: Set[str], ambiguous: Set[str], *, strict: bool) -> None:
        self._document = Document(document)
        self._root = name
        self._strict = strict
        self._taken = taken
        self._ambiguous = ambiguous
        self._named: dict[str, str] = {}  # name → content of the class
        # Schemas are identified by their memory address; temporary ones are kept, so that no address is reused.
        self._classes: dict[tuple[int, int], str] = {}
        self._kept: list[Any] = []
        self._todo: deque[tuple[str, Node, int]] = deque()
        self._enums: dict[tuple[str, ...], str] = {}
        self._depth = 0  # the number of nested classes above the current one
        self.ambiguous: set[str] = set()

    def read(self) -> Shapes:
        root = self._document.flat(self._document.root)
        if root.may_be_object():
            # Several forms of an object become one with the attributes of all, so that there is something to call.
            if root.options:
                root = replace(self._document.fold(root), description=f"{root.description}\n{self._forms(root)}".strip())
            for schema in (self._document.root, self._document.follow(self._document.root)):
                if isinstance(schema, dict) and schema:
                    self._classes[id(schema), 0] = self._root
            self._todo.append((self._root, root, 0))
            first: list[Shape] = []
        elif self._strict:
            self._document.note(NO_OBJECT)
            first = [Shape(self._root)]
        else:
            annotation = " | ".join(self._annotation(self._document.root, self._root, frozenset()))
            first = [Shape(self._root, description=root.description, root=annotation, strict=False)]
        shapes = first
        while self._todo:
            name, node, self._depth = self._todo.popleft()
            shapes.append(self._shape(name, node))
        enums = [Shape(name, values=values) for values, name in self._enums.items()]
        return Shapes((*_merged_equal(shapes), *enums), tuple(self._document.notes))

    def _shape(self, name: str, node: Node) -> Shape:
        properties: list[Property] = []
        dropped = False
        declared = node.properties or {}
        for key in [*declared, *sorted(node.required - set(declared))]:
            if len(properties) == _MOST_PROPERTIES or not self._document.spend():
                self._document.note(TOO_LARGE)
                dropped = True
                break
            if len(key) > _LONGEST_NAME or not is_text(key):
                self._document.note(_NAMES)
                dropped = True
                continue
            properties.append(self._property(key, declared.get(key), required=key in node.required))
        closed = node.additional is False or (node.additional is None and node.properties is not None)
        extra = not (self._strict and closed) or node.open or dropped
        return Shape(name, tuple(properties), extra, node.description, strict=self._strict)

    def _property(self, key: str, schema: Any, *, required: bool) -> Property:
        node = self._document.flat(schema)
        parts = self._annotation(schema, key, frozenset())
        nullable = "None" in parts or parts == ["Any"]
        default = None
        said: list[Any] = [] if node.default is None else [node.default]
        if required:
            # A constant has one possible value: it is sent without being given.
            if self._strict and (constant := only_value(node)) is not None and parts == [f"Literal[{constant}]"]:
                default, said = constant, []
        else:
            default = self._default(node.default, parts)
            if default != "None":
                said = []
            elif not nullable:
                parts = [*parts, "None"]
        description = " ".join(
            [node.description, *self._remarks(node), *(f"Default: {json_text(value)}" for value in said)]
        ).strip()
        return Property(key, " | ".join(parts), default, description, nullable=self._strict and nullable and not required)

    def _default(self, default: Any, parts: list[str]) -> str:
        """Return a default as source; `None` if it cannot be expressed."""
        for values, name in self._enums.items():
            if name in parts and type(default) is str and default in values:
                return f"{name}.{member_names(values)[default]}"
        return source_of(default, parts)

    def _remarks(self, node: Node) -> list[str]:
        """Return remarks on properties that types cannot express: format, constraints, and names of forms."""
        remarks = []
        if node.format and node.format not in node.description:
            remarks.append(f"({node.format})")
        if self._strict and node.step is not None:
            remarks.append(f"(a multiple of {node.step!r})")
        if self._strict and node.unique:
            remarks.append("(no duplicates)")
        inner = node.items if node.items or node.properties else node.additional
        items = self._document.flat(inner) if isinstance(inner, dict) else Node()
        # An object's description is in its class.
        if items.description and not items.properties:
            remarks.append(f"Each: {items.description}")
        # The same holds for the forms of an object.
        return [*remarks, *([words] if (words := self._forms(node, objects=False)) else [])]

    def _forms(self, node: Node, *, objects: bool = True) -> str:
        """Return the names of a value's forms, if they have any."""
        forms = [self._document.flat(option) for option in node.options[:MOST_OPTIONS]]
        words = [form.description or form.title for form in forms if objects or not form.properties]
        words = [word for word in dict.fromkeys(words) if word and word not in node.description]
        return f"One of: {'; '.join(words)}" if words else ""

    def _annotation(self, schema: Any, hint: str, path: frozenset[int]) -> list[str]:
        """Return the members of the union for a schema, as source."""
        schema, hint = self._document.follow(schema), _hint(schema, hint)
        if known := self._classes.get((id(schema), 0)):
            return [known]
        if not isinstance(schema, dict) or not schema:
            return ["Any"]
        if id(schema) in path:
            self._document.note(_ROUND)
            return ["Any"]
        if len(path) == DEEPEST or not self._document.spend():
            self._document.note(TOO_LARGE)
            return ["Any"]
        path |= {id(schema)}
        self._kept.append(schema)
        node = self._document.flat(schema)
        if node.options and node.properties and node.may_be_object():
            node = self._document.fold(node)
        parts: list[str] = []
        if node.options:
            for number, option in enumerate(node.options[:MOST_OPTIONS]):
                parts += self._option(schema, node, number, option, hint, path)
            if len(node.options) > MOST_OPTIONS:
                self._document.note(TOO_LARGE)
                parts = ["Any"]
        else:
            parts = self._typed(node, (id(schema), 0), hint, path)
        return ["Any"] if "Any" in parts else list(dict.fromkeys(parts))

    def _option(self, schema: Any, base: Node, number: int, option: Any, hint: str, path: frozenset[int]) -> list[str]:
        form = self._document.flat(option)
        if form.properties:  # forms of an object are distinguished by their names or constants
            hint = form.title or f"{hint} {_constant(form)}"
        if base.is_bare() and (base.types is None or form.types is not None):
            return self._annotation(option, hint, path)
        node = merged(form, replace(base, options=()))
        key = (id(schema), number + 1)
        return [self._classes[key]] if key in self._classes else self._typed(replace(node, options=()), key, hint, path)

    def _typed(self, node: Node, key: tuple[int, int], hint: str, path: frozenset[int]) -> list[str]:
        if node.values is not None:
            if self._strict and (name := self._enum(node.values, hint)) is not None:
                return [name, *(["None"] if None in node.values else [])]
            if literal := literal_of(node.values):
                return literal
            self._document.note(_VALUES)
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
        """Return the class of an enumeration of strings; None for other values, or too many."""
        texts = [value for value in values if value is not None]
        if not all(type(value) is str for value in texts) or literal_of(texts) is None:
            return None
        words = tuple(dict.fromkeys(texts))
        if len(words) < 2:
            return None
        if words not in self._enums:
            self._enums[words] = self._class_name(hint, words)
        return self._enums[words]

    def _class_name(self, hint: str, what: Node | tuple[str, ...]) -> str:
        name = class_name(hint)
        if name in self._taken:  # by a class of the arguments
            name = class_name(f"Result {hint}")
        content = _content(what)
        if self._named.setdefault(name, content) != content:
            self.ambiguous.add(name)
        return with_digest(name, content) if name in self._ambiguous else name

    def _object(self, node: Node, key: tuple[int, int], hint: str, path: frozenset[int]) -> str:
        if not node.properties:
            values = ["Any"]
            if isinstance(node.additional, dict) and not node.open:
                values = self._annotation(node.additional, f"{hint} value", path)
            return f"dict[str, {' | '.join(values)}]"
        # pydantic builds a class within the class that uses it, and Python's stack is limited.
        if len(self._classes) >= _MOST_CLASSES or self._depth == DEEPEST:
            self._document.note(TOO_LARGE)
            return "dict[str, Any]"
        name = self._class_name(hint, node)
        if name not in self._classes.values():  # or the same object stands in several places
            self._todo.append((name, node, self._depth + 1))
        self._classes[key] = name
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
        if kind == "integer":  # pydantic requires integer bounds for integers
            bounds = [bound for bound in bounds if node.bounds[bound[0]] == int(node.bounds[bound[0]])]
        arguments = [f"{argument}={plain_number(node.bounds[keyword])!r}" for keyword, argument in bounds]
        return f"Annotated[{annotation}, Field({', '.join(arguments)})]" if arguments else annotation


def _constant(form: Node) -> str:
    """Return the constant text of one property of a form, such as its ``type``; empty if it has none."""
    for schema in (form.properties or {}).values():
        values = own(schema).values if isinstance(schema, dict) else None
        if values and len(values) == 1 and isinstance(values[0], str):
            return values[0]
    return ""


def _content(what: Node | tuple[str, ...]) -> str:
    """Return a text form of a class's content that is the same in every process."""
    if isinstance(what, tuple):
        return repr(what)
    parts = [getattr(what, part.name) for part in fields(what) if part.name != "required"]
    return repr([sorted(what.required), *(cut(part, _DEEPEST_CONTENT) for part in parts)])


def _hint(schema: Any, hint: str) -> str:
    """Return the name of a schema's reference target, or the given name."""
    place = reference(schema) if isinstance(schema, dict) else None
    return place.rpartition("/")[2] or hint if place else hint


def _merged_equal(shapes: list[Shape]) -> list[Shape]:
    """Merge equal shapes."""
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
    """Rename classes in an annotation, except inside strings."""
    tree = ast.parse(annotation, mode="eval")
    if not any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(tree)):
        return annotation
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.unparse(tree)
