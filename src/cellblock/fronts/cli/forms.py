"""Shows forms of MCP servers in a terminal, and reads the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError

_YES, _NO = ("y", "yes", "true"), ("n", "no", "false")


def fields_of(question: Mapping[str, Any]) -> str:
    """Return the fields of a question's form on one line: names and accepted values."""
    schema = question["arguments"].get("schema", {})
    shown = []
    for name, field in schema.get("properties", {}).items():
        choices = field.get("enum") or [option["const"] for option in field.get("oneOf", ())]
        takes = "|".join(choices) if choices else field["type"]
        shown.append(f"{name}: {takes}" if name in schema.get("required", ()) else f"{name}: {takes}, optional")
    return printable("; ".join(shown), lines=False)


def read_answer(text: str) -> dict[str, Any]:
    """Parse an answer given as JSON.

    Raises:
        InvalidInputError: The text is not a JSON object.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f'an answer is a JSON object such as {{"name": "value"}}: {error}') from error
    if not isinstance(given, dict):
        raise InvalidInputError('an answer is a JSON object such as {"name": "value"}')
    return given


def read_line(question: Mapping[str, Any], line: str) -> dict[str, Any]:
    """Parse a typed answer: the value of the only field, or a JSON object.

    Raises:
        InvalidInputError: The text is neither.
    """
    fields = question["arguments"].get("schema", {}).get("properties", {})
    typed = line.strip()
    if len(fields) != 1 or typed.startswith("{"):
        return read_answer(typed)
    ((name, field),) = fields.items()
    return {name: _value(field["type"], typed)}


def _value(kind: str, typed: str) -> Any:
    if kind == "string":
        return typed
    if kind == "array":
        return [item.strip() for item in typed.split(",")]
    if kind == "boolean" and typed.lower() in (*_YES, *_NO):
        return typed.lower() in _YES
    try:
        return json.loads(typed)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"it takes a value of the type {kind}") from error
