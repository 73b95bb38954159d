"""Values of a schema as Python source: constants, listed values, defaults."""

from __future__ import annotations

import ast
import json
from typing import Any

from cellblock.tools.apigen.schema import Node, is_number

_MOST_VALUES = 200
_LONGEST_VALUE = 200


def only_value(node: Node) -> str | None:
    """Return the only possible value of a schema, as source."""
    values = list(dict.fromkeys(map(repr, node.values or ())))
    return values[0] if len(values) == 1 and node.values != [None] else None


def literal_of(values: list[Any]) -> list[str] | None:
    """Return the members of a union for listed values; None if they cannot be expressed."""
    if len(values) > _MOST_VALUES or not all(type(value) in (str, int, bool, type(None)) for value in values):
        return None
    if any(type(value) is str and (len(value) > _LONGEST_VALUE or not is_text(value)) for value in values):
        return None
    if any(type(value) is int and not is_number(value) for value in values):
        return None
    listed = dict.fromkeys(repr(value) for value in values if value is not None)
    return [*([f"Literal[{', '.join(listed)}]"] if listed else []), *(["None"] if None in values else [])]


def source_of(default: Any, parts: list[str]) -> str:
    """Return a default as source if it is simple and has the right type, else None."""
    kind = type(default)
    if (kind is str and (len(default) > _LONGEST_VALUE or not is_text(default))) or (
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


def is_text(value: str) -> bool:
    """Return whether a string can be sent: JSON can contain halves of surrogate pairs, UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_number(value: Any) -> Any:
    """Convert a whole number to an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def json_text(value: Any) -> str:
    """Return a value as JSON, cut to the maximum length in a description."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
