"""Actions outside of a session that code asks for, and the decisions about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellblock.model.plain import Plain

CallKind = Literal["tool", "shell", "network", "server"]
"""The kind of an action outside a session: calling an MCP tool, running a command, reaching a host, adding an MCP server."""


@dataclass(frozen=True, slots=True)
class CommandRequest(Plain):
    """A program that code of a session wants to run, and that waits for a decision.

    Attributes:
        tool: ``shell`` for a line (``!cmd``, ``%sx``), ``shell_magic`` for a script (``%%bash``).
        command: The line that the session's shell gets, or the script that `program` reads; exactly what runs.
        program: For a script: what runs it, with its arguments; empty for a line.
        cwd: The directory that it runs in.
        environment: Variables that the code has changed since the session began, by name; None for a removed one.
            ``PATH`` or ``LD_PRELOAD``, for example, can turn a harmless command into another one.
    """

    tool: Literal["shell", "shell_magic"]
    command: str
    program: tuple[str, ...] = ()
    cwd: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one call, and who made it, as the audit trail keeps it.

    Attributes:
        outcome: ``allow`` or ``deny``.
        by: The rule, as its text; else ``person``, ``caller`` (`CodeExecutor.execute`) or ``nobody``, also when time ran out.
        session: The session whose code asked.
        kind: ``tool``, ``shell``, ``network`` or ``server``.
        server: The MCP server's name, or ``shell``, or ``network``.
        tool: The tool's name.
        payload: The arguments as canonical JSON: the bytes that were shown, and that are executed.
        at: When it was decided, in seconds since the epoch.
        reason: Why it was denied, for the code that asked.
    """

    outcome: Literal["allow", "deny"]
    by: str
    session: str
    kind: CallKind
    server: str
    tool: str
    payload: bytes
    at: float
    reason: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the call may be made."""
        return self.outcome == "allow"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments to execute, parsed anew from the bytes each time."""
        data: dict[str, Any] = json.loads(self.payload)
        return data

    @property
    def sha256(self) -> str:
        """The digest of the bytes, in hexadecimal."""
        return hashlib.sha256(self.payload).hexdigest()
