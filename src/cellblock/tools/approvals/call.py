"""Frozen calls: the same bytes are shown, decided on, recorded and executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cellblock.errors import InvalidInputError
from cellblock.model.decisions import CallKind
from cellblock.model.untrusted import parse_json


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints of an MCP server about its tool. They are untrusted: a hint can make a rule match, but proves nothing.

    The defaults come from the MCP specification (2025-11-25, `ToolAnnotations`).

    Attributes:
        read_only: Whether the tool changes nothing.
        destructive: Whether the tool may destroy something. Meaningless if it changes nothing.
    """

    read_only: bool = False
    destructive: bool = True


@dataclass(frozen=True, slots=True)
class Origin:
    """The identity behind a server name, because two servers can have the same name.

    Attributes:
        root: The directory of the server's registration; empty for all sessions, and for other kinds of calls.
        digest: A digest of the server's command line or URL, and of the names of its variables or headers; empty if none.
    """

    root: str = ""
    digest: str = ""


NO_ORIGIN = Origin()


@dataclass(frozen=True, slots=True)
class Call:
    """A request of code for one action outside its session.

    Attributes:
        kind: ``tool``, ``shell``, ``network``, ``http`` or ``server``.
        server: The MCP server's name, or ``shell``, ``network``, or the host of a request.
        tool: The tool's name.
        payload: The arguments as canonical JSON: sorted keys, no spaces, ASCII.
        parsed: The arguments, parsed once, for reading only.
        hints: The server's hints about the tool.
        changed: How the tool differs from its generated API; empty if it does not.
        origin: The server's identity.
    """

    kind: CallKind
    server: str
    tool: str
    payload: bytes
    parsed: Mapping[str, Any] = field(repr=False, compare=False)
    hints: Hints = field(default_factory=Hints)
    changed: str = ""
    origin: Origin = NO_ORIGIN

    @classmethod
    def freeze(
        cls,
        kind: CallKind,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        hints: Hints | None = None,
        changed: str = "",
        origin: Origin = NO_ORIGIN,
    ) -> Self:
        """Freeze the present arguments.

        Args:
            kind: ``tool``, ``shell``, ``network``, ``http`` or ``server``.
            server: The MCP server's name, or ``shell``, ``network``, or the host of a request.
            tool: The tool's name.
            arguments: JSON data. Later changes to the mapping have no effect.
            hints: The server's hints about the tool.
            changed: How the tool differs from its generated API. Requests for approval show it.
            origin: The server's identity.

        Raises:
            InvalidInputError: The arguments are not a JSON object, or are nested too deeply.
        """
        if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
            raise InvalidInputError(f"The arguments of {server}.{tool} must be a JSON object, not {type(arguments).__name__}.")
        try:
            text = json.dumps(dict(arguments), sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"The arguments of {server}.{tool} are not valid JSON: {error}") from error
        payload = text.encode("ascii")
        parsed = parse_json(payload, what=f"the arguments of {server}.{tool}", counted=True)
        return cls(kind, server, tool, payload, parsed, hints or Hints(), changed, origin)

    @property
    def arguments(self) -> dict[str, Any]:
        """A fresh copy of the arguments, which callers may change."""
        data: dict[str, Any] = json.loads(self.payload)
        return data

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"
