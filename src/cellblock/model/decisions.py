"""Actions outside a session that code requests, and the decisions about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellblock.model.plain import Plain

CallKind = Literal["tool", "shell", "network", "http", "server"]
"""The kind of an action outside a session: calling an MCP tool, running a command, reaching a host, sending an HTTP request,
adding an MCP server.
"""


@dataclass(frozen=True, slots=True)
class CommandRequest(Plain):
    """A program that a session's code wants to run, and that waits for a decision.

    Attributes:
        tool: ``shell`` for a line (``!cmd``, ``%sx``), ``shell_magic`` for a script (``%%bash``).
        command: The exact line for the session's shell, or the exact script for `program`.
        program: The interpreter of a script, with its arguments; empty for a line.
        cwd: The working directory.
        environment: Variables that the code has changed since the session began, by name; None for a removed one. For example,
            ``PATH`` or ``LD_PRELOAD`` can make a harmless command dangerous.
    """

    tool: Literal["shell", "shell_magic"]
    command: str
    program: tuple[str, ...] = ()
    cwd: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one call, as recorded in the audit trail.

    Attributes:
        outcome: ``allow`` or ``deny``.
        by: The text of a rule, ``person``, ``caller`` (`CodeExecutor.execute`) or ``nobody``, also after a timeout.
        session: The session whose code asked.
        kind: ``tool``, ``shell``, ``network``, ``http`` or ``server``.
        server: The MCP server's name, or ``shell``, ``network``, or the host of a request.
        tool: The tool's name, or the method of a request.
        payload: The arguments as canonical JSON: the bytes that were shown, and that are executed.
        at: Time of the decision, in seconds since the epoch.
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
        """Whether the call is allowed."""
        return self.outcome == "allow"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments to execute, parsed from the payload on each access."""
        data: dict[str, Any] = json.loads(self.payload)
        return data

    @property
    def sha256(self) -> str:
        """The hexadecimal digest of the payload."""
        return hashlib.sha256(self.payload).hexdigest()
