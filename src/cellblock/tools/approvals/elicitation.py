"""Elicitation: an MCP server asks its user to fill in a form during a tool call."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.tools.approvals.request import visible

_MAX_MESSAGE = 4000
_MAX_SCHEMA = 16 * 1024
_MAX_FIELDS = 32
_MAX_CHOICES = 100
_MAX_LABEL = 300
_MAX_TEXT = 10_000
"""Characters of a text in an answer."""

_FIELD = re.compile(r"[\w.-]{1,64}", re.ASCII)
_FORMATS = ("email", "uri", "date", "date-time")
_LIMITS = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
_IS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
}


@dataclass(frozen=True, slots=True)
class Elicitation:
    """A question of an MCP server, in its own words. When you show it, name the server, and never ask for secrets.

    Attributes:
        server: The registered name of the server.
        message: The text, without hidden characters and terminal controls.
        schema: The form: a JSON Schema of an object with texts, numbers, booleans and choices only.
        id: An unguessable id.
    """

    server: str
    message: str
    schema: Mapping[str, Any]
    id: str = field(default_factory=lambda: secrets.token_hex(16))

    def __str__(self) -> str:
        return f"MCP server {self.server!r} asks: {self.message}"


OnElicitation = Callable[[Elicitation], Awaitable[Mapping[str, Any] | None]]
"""Asks a person to fill in a form. Returns the values by field, or None for a refusal."""


@dataclass(frozen=True, slots=True)
class Person:
    """The person whom servers can ask about the calls of one session.

    Attributes:
        session: The session's id.
        ask: Asks the person.
    """

    session: str
    ask: OnElicitation


def read_elicitation(server: str, message: str, schema: Mapping[str, Any]) -> Elicitation:
    """Parse a server's question. Parts of its form that cannot be shown are left out.

    Args:
        server: The server's name.
        message: The message.
        schema: The form.

    Raises:
        InvalidInputError: The form cannot be shown.
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or len(properties) > _MAX_FIELDS or _is_large(schema):
        raise InvalidInputError(f"a form has at most {_MAX_FIELDS} fields and {_MAX_SCHEMA} characters")
    fields: dict[str, Any] = {}
    for name, given in properties.items():
        if not _FIELD.fullmatch(name) or not isinstance(given, Mapping):
            raise InvalidInputError("a form's fields have names of letters, digits and ._-")
        fields[name] = _field(given)
    required = schema.get("required") or []
    wanted = [name for name in fields if isinstance(required, list) and name in required]
    shown = "\n".join(map(visible, message[:_MAX_MESSAGE].splitlines()))[:_MAX_MESSAGE]
    return Elicitation(server, shown, {"type": "object", "properties": fields, "required": wanted})


def _is_large(schema: object) -> bool:
    """Return whether data exceeds the limit, without examining much more than that."""
    left, size = [schema], 0
    while left and size <= _MAX_SCHEMA:
        item = left.pop()
        size += len(item) if isinstance(item, str | Mapping | list) else 1
        if size <= _MAX_SCHEMA and isinstance(item, Mapping):
            left += [*item.keys(), *item.values()]
        elif size <= _MAX_SCHEMA and isinstance(item, list):
            left += item
    return size > _MAX_SCHEMA


def _field(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _LIMITS:
        raise InvalidInputError("a form's field is a string, a number, an integer, a boolean or an array")
    made: dict[str, Any] = {"type": kind}
    for name in ("title", "description"):
        if isinstance(given.get(name), str):
            made[name] = _label(given[name])
    for name in _LIMITS[kind]:
        if _is(given.get(name), "number"):
            made[name] = given[name]
    if kind == "string" and given.get("format") in _FORMATS:
        made["format"] = given["format"]
    if kind == "string":
        made |= _choices(given, "oneOf")
    if kind == "array":
        items = given.get("items")
        choices = _choices(items, "anyOf") if isinstance(items, Mapping) else {}
        if not choices:
            raise InvalidInputError("a form's array is a list of choices")
        made["items"] = {"type": "string", **choices} if "enum" in choices else choices
    if "default" in given and _fits(given["default"], made):
        made["default"] = given["default"]
    return made


def _choices(given: Mapping[str, Any], titled: str) -> dict[str, Any]:
    """Return the choices of a field, which can be plain, named or titled."""
    if isinstance(plain := given.get("enum"), list):
        made: dict[str, Any] = {"enum": [*map(_choice, plain[: _MAX_CHOICES + 1])]}
        names = given.get("enumNames")
        if isinstance(names, list) and len(names) == len(plain) and all(isinstance(name, str) for name in names):
            made["enumNames"] = [*map(_label, names)]
    elif isinstance(options := given.get(titled), list) and all(isinstance(option, Mapping) for option in options):
        made = {
            titled: [
                {"const": _choice(option.get("const")), "title": _label(str(option.get("title", "")))}
                for option in options[: _MAX_CHOICES + 1]
            ]
        }
    else:
        return {}
    if len(next(iter(made.values()))) > _MAX_CHOICES:
        raise InvalidInputError(f"a form's field has at most {_MAX_CHOICES} choices")
    return made


def _choice(value: object) -> str:
    # It is returned unchanged, so it must not look like something else.
    if not isinstance(value, str) or len(value) > _MAX_LABEL or visible(value) != value:
        raise InvalidInputError(f"a choice is a text that can be printed, of at most {_MAX_LABEL} characters")
    return value


def _label(text: str) -> str:
    return visible(text[:_MAX_LABEL])[:_MAX_LABEL]


def check_answer(elicitation: Elicitation, content: Mapping[str, Any]) -> dict[str, Any]:
    """Validate an answer to a form, and return it.

    Args:
        elicitation: The form.
        content: The values by field.

    Raises:
        InvalidInputError: The answer does not fit the form.
    """
    fields = elicitation.schema["properties"]
    for name, value in content.items():
        if name not in fields or not _fits(value, fields[name]):
            raise InvalidInputError(f"{str(name)[:100]!r} is not a field of that form, or has another type")
    if missing := [name for name in elicitation.schema["required"] if name not in content]:
        raise InvalidInputError(f"the answer to {elicitation.server!r} does not have {missing[0]!r}")
    return dict(content)


def _fits(value: object, form: Mapping[str, Any]) -> bool:
    kind = form["type"]
    if not _is(value, kind):
        return False
    if kind == "array":
        assert isinstance(value, list)
        allowed = _allowed(form["items"])
        return len(value) <= _MAX_CHOICES and all(isinstance(item, str) and item in allowed for item in value)
    if kind == "string":
        allowed = _allowed(form)
        return len(str(value)) <= _MAX_TEXT and (not allowed or value in allowed)
    return True


def _allowed(form: Mapping[str, Any]) -> list[str]:
    titled = form.get("oneOf") or form.get("anyOf") or []
    return [*form.get("enum", []), *(option["const"] for option in titled)]


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return kind == "boolean" and isinstance(value, bool)
    return isinstance(value, _IS[kind])
