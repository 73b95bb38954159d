"""Frozen calls: the same bytes are shown, decided on, recorded and executed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

from cellblock.errors import InvalidInputError
from cellblock.model.decisions import CallKind

MAX_DEPTH = 100
"""Maximum nesting of JSON: parsers, here or in an MCP server, may have no limit but their stack."""

MAX_TOKENS = 200_000
"""Maximum number of brackets, commas, colons and texts in foreign JSON: each may become a much larger object."""

TOKEN_WEIGHT = 64
"""Bytes that each of them counts when memory is estimated: an empty list has 56."""

# A text without an end matches up to the end of the input: otherwise the pattern would be tried at each quote in it.
_TOKEN = re.compile(rb'[\[{,:]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints of an MCP server about its tool. They are untrusted: a hint can make a rule match, but proves nothing.

    The defaults are those of the MCP specification (2025-11-25, `ToolAnnotations`).

    Attributes:
        read_only: Whether the tool changes nothing.
        destructive: Whether it may destroy something. Meaningless if it changes nothing.
    """

    read_only: bool = False
    destructive: bool = True


@dataclass(frozen=True, slots=True)
class Origin:
    """The identity of what a name means: two servers of the same name are different ones.

    Attributes:
        root: The directory that a server is registered for; empty for all sessions, and for what is not a server.
        digest: A digest of its command line or URL, and of the names of its variables or headers; empty if there is none.
    """

    root: str = ""
    digest: str = ""


NO_ORIGIN = Origin()


@dataclass(frozen=True, slots=True)
class Call:
    """One action outside its session that code requests.

    Attributes:
        kind: ``tool``, ``shell``, ``network`` or ``server``.
        server: The MCP server's name, or ``shell``, or ``network``.
        tool: The tool's name.
        payload: The arguments as canonical JSON: sorted keys, no spaces, ASCII.
        parsed: The arguments, parsed once: for reading only.
        hints: The server's hints about the tool.
        changed: How the tool differs from the one that an API was generated for; empty if it does not.
        origin: Which server the name means.
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
            kind: ``tool``, ``shell``, ``network`` or ``server``.
            server: The MCP server's name, or ``shell``, or ``network``.
            tool: The tool's name.
            arguments: JSON data. Later changes to the mapping have no effect.
            hints: The server's hints about the tool.
            changed: How the tool differs from the one that an API was generated for. Requests for approval show it.
            origin: Which server the name means.

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
        return cls(kind, server, tool, payload, parse(payload), hints or Hints(), changed, origin)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, parsed anew each time, so that callers change only a copy."""
        data: dict[str, Any] = json.loads(self.payload)
        return data

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"


def parse(text: bytes) -> Any:
    """Parse JSON that may be hostile.

    Args:
        text: The bytes; the caller limits their number.

    Returns:
        The value.

    Raises:
        InvalidInputError: It is not valid JSON (RFC 8259, so no NaN), or is nested deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"This is not valid JSON: {error}") from error
    # Nesting needs brackets: with few of them, the usual case, there is nothing to check.
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise InvalidInputError(f"This JSON is nested deeper than {MAX_DEPTH} levels.")
    return value


def tokens(text: bytes) -> int:
    """Count the tokens of JSON without parsing it, up to `MAX_TOKENS` + 1.

    Args:
        text: The bytes; they need not be JSON.

    Returns:
        An upper bound of the number of brackets, commas, colons and texts; exact, without those within texts, if it may
            matter.
    """
    # Fast, and too high if texts have commas. It is nearly always sufficient.
    most = 2 * sum(text.count(mark) for mark in (b"{", b"[", b",", b":"))
    return most if most <= MAX_TOKENS else sum(1 for _ in islice(_TOKEN.finditer(text), MAX_TOKENS + 1))


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [item for item in level if isinstance(item, (dict, list))]
        if not level:
            return False
        level = [item for parent in level for item in (parent.values() if isinstance(parent, dict) else parent)]
    return True


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
