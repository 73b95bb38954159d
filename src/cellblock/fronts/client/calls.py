"""The requests of the clients to a gateway. No I/O: both clients send the same calls."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field
from typing import Any
from urllib.parse import quote

from cellblock.common.environments import Environment
from cellblock.errors import InvalidInputError
from cellblock.model.sessions import ExecutionRecord, SessionRecord
from cellblock.operations.base import Request, Route
from cellblock.operations.data import execution_of, session_of


@dataclass(frozen=True, slots=True)
class Call:
    """A request.

    Attributes:
        method: The HTTP method.
        path: The path, with quoted names.
        body: JSON data to send, or None.
        query: The query parameters.
        once: Whether the request must not be repeated, so that a lost connection leaves its outcome unknown.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    once: bool = False


def of(request: Request[Any], body: bytes = b"") -> Call:
    """Return the call for an operation. Fields with their default values are left out.

    Args:
        request: The operation.
        body: The operation's body, if it has one: code, a line, or the input of a program.

    Raises:
        InvalidInputError: A value cannot be part of a URL, or the body is not text.
    """
    route = _route(request)
    path = re.sub("{(.+?)}", lambda place: _placed(place[1], getattr(request, place[1].partition(":")[0])), route.path)
    sent = route.sent(type(request))
    given = {one.name: value for one in sent if (value := getattr(request, one.name)) != _default(one)}
    if route.text:
        try:
            given[route.text] = body.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise InvalidInputError(f"{route.text} must be UTF-8 text for a gateway, not other bytes") from None
    if route.method == "POST":
        return Call(route.method, path, given if sent or route.text else None, once=not request.may_repeat)
    query = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    return Call(route.method, path, query=query, once=not request.may_repeat)


def answer(request: Request[Any], data: Any) -> Any:
    """Return the data of the operation's answer from the JSON answer of a gateway."""
    field = _route(request).within
    return data[field] if field else data


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _route(request: Request[Any]) -> Route:
    route = request.route
    assert route is not None, f"{request.op!r} has no route"
    return route


def options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert session options to JSON data. The gateway resolves relative paths from its current directory."""
    try:
        data: dict[str, Any] = json.loads(json.dumps(given, allow_nan=False, default=_data))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"options of a session are JSON data, and {given!r:.200} are not: {error}") from None
    return data


def _data(value: Any) -> Any:
    return value.read().for_daemon() if isinstance(value, Environment) else os.fspath(value)


def code(text: str, language: str, timeout: float | None) -> dict[str, Any]:
    """Convert code to JSON data."""
    if language not in ("python", "bash"):
        raise InvalidInputError(f"language must be 'python' or 'bash', not {language!r}")
    return {"code": text, "language": language, "timeout": timeout}


def session(kernel: SessionRecord | str, what: str = "", under: str = "sessions") -> str:
    """Return the path of a session, or of a part of it."""
    path = f"/{under}/{_placed('session', session_of(kernel))}"
    return f"{path}/{what}" if what else path


def file(kernel: SessionRecord | str, path: str) -> str:
    """Return the path of a file."""
    return session(kernel, f"files/{_placed('path:file', path)}")


def events(execution: ExecutionRecord | str) -> str:
    """Return the path of an execution's events."""
    return f"/executions/{_placed('execution', execution_of(execution))}/events"


def files(asked: bool) -> dict[str, str]:
    """Return the query that includes or excludes the files of the workspace."""
    return {"files": "true" if asked else "false"}


def format_of(local: str | os.PathLike[str]) -> dict[str, str]:
    """Return the query for the export format that a file name implies."""
    kind = os.path.splitext(local)[1].lower()
    if kind not in (".ipynb", ".py"):
        raise InvalidInputError(f"{os.fspath(local)!r} must end with .ipynb, for a notebook, or .py, for a script")
    return {"format": kind[1:]}


def _placed(place: str, value: str) -> str:
    """Return a field of an operation for the URL path."""
    if place.endswith(":file"):
        return quote(value, errors="surrogateescape")
    if not isinstance(value, str) or not value.strip(".") or "/" in value:
        raise InvalidInputError(f"{value!r} cannot be part of an address: use the id of the {place}")
    return quote(value, safe="", errors="surrogateescape")


class EventLines:
    """A parser that turns lines of server-sent events into events."""

    def __init__(self) -> None:
        self._kind = ""
        self._data: list[str] = []

    def take(self, line: str) -> tuple[str, Any] | None:
        """Parse one line; return the kind and data of the event that it completes, if any."""
        if not line:
            kind, data = self._kind, "\n".join(self._data)
            self._kind, self._data = "", []
            return (kind, json.loads(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None
