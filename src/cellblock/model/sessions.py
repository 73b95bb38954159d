"""Named sessions and their executions, as every interface shows them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from cellblock.errors import InvalidInputError, failure
from cellblock.model import CodeExecutionResult
from cellblock.model.plain import Plain

OWN_KERNEL = "python3"
"""The kernelspec that stands for cellblock's own kernel."""

Language = Literal["python", "bash"]

SessionStatus = Literal["running", "idle", "dead", "unknown"]
"""``running``: a cell runs. ``idle``: none does. ``dead``: its kernel ended, and the next cell gets a fresh one."""

ExecutionState = Literal["queued", "running", "done", "unknown"]
"""``unknown``: it was running when the process that ran it was killed, and nobody can say how far it came."""

EventKind = Literal["begun", "stream", "display", "clear", "comm", "input", "approval", "decided", "gap", "failed", "result"]


_ID = re.compile("[0-9a-f]{32}")


def mark_of(number: str) -> str:
    """Return the mark of a node of a cluster, with which the ids of its sessions and executions end.

    Args:
        number: An id, or a name, which has no mark.
    """
    return number[-8:] if _ID.fullmatch(number) else ""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A named session.

    Attributes:
        kernel_id: Its id, which no other session ever has.
        name: Its name.
        created_at: When it was made (ISO 8601, UTC).
        last_used_at: When it was last used.
        status: Its current state.
        tags: Labels that its maker gave it.
        workspace: The directory that it works in.
        isolate: How its kernel is isolated; ``none`` without a sandbox.
        kernel_type: The Jupyter kernelspec; ``python3`` for cellblock's own kernel.
        attempt_count: How many attempts `execute_with_retry` has made in it.
        branch_of: The id of the session that it was made from; empty unless it is a branch.
        branch_at: The number of that session's last cell then.
        connection_file: Empty: there is nothing to connect to by path. KernelBox has this field.
    """

    kernel_id: str
    name: str
    created_at: str
    last_used_at: str
    status: SessionStatus = "idle"
    tags: Mapping[str, str] = field(default_factory=dict)
    workspace: str = ""
    isolate: str = ""
    kernel_type: str = "python3"
    attempt_count: int = 0
    branch_of: str = ""
    branch_at: int = 0
    connection_file: str = ""

    @property
    def session_name(self) -> str:
        """Its name, as KernelBox calls it."""
        return self.name

    @property
    def age_seconds(self) -> float:
        """Seconds since it was made."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.created_at)).total_seconds()

    def check_isolation(self, options: Mapping[str, Any]) -> None:
        """Check that a session that was there already has the isolation that these options ask for.

        Args:
            options: Options of `get_or_create`. The others are only for a session that is made.

        Raises:
            InvalidInputError: It has another one.
        """
        asked = "none" if options.get("sandbox") is False else options.get("isolate")
        if asked is None and options.get("sandbox") and self.isolate == "none":
            asked = "a sandbox"
        if asked not in (None, self.isolate):
            raise InvalidInputError(
                f"session {self.name!r} has isolate={self.isolate!r}, and {asked} was asked for: a session keeps the "
                "isolation that it was made with; destroy it first, or take another name"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return {
            "kernel_id": self.kernel_id,
            "name": self.name,
            "session_name": self.name,
            "created_at": self.created_at,
            "last_used_at": self.last_used_at,
            "status": self.status,
            "tags": dict(self.tags),
            "workspace": self.workspace,
            "isolate": self.isolate,
            "kernel_type": self.kernel_type,
            "attempt_count": self.attempt_count,
            "branch_of": self.branch_of,
            "branch_at": self.branch_at,
            "connection_file": self.connection_file,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionRecord:
        """Return the record that `to_dict` has written. A later version may have written more, which is ignored."""
        return cls(**{name: value for name, value in data.items() if name in cls.__dataclass_fields__})


KernelRecord = SessionRecord
"""KernelBox's name for it."""


@dataclass(frozen=True, slots=True)
class ExecutionRecord(Plain):
    """One execution in a named session, which can be followed and asked for later by its id.

    Attributes:
        id: Its id, which no other execution ever has.
        session: The id of its session.
        state: How far it is.
        submitted: When it was submitted, in seconds since the epoch.
        begun: When it began to run, or None.
        ended: When it ended, or None.
        key: The idempotency key that it was submitted with; empty if there was none.
    """

    id: str
    session: str
    state: ExecutionState = "queued"
    submitted: float = 0.0
    begun: float | None = None
    ended: float | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionEvent:
    """Something that happened in an execution.

    Attributes:
        seq: Its number in the execution, from 1 on, without gaps.
        kind: The kind of event, which determines what `data` holds.
        data: JSON data, in which pictures and their like can be bytes: ``name`` and ``text`` of a ``stream``;
            `OutputItem.to_dict` of a ``display``; ``wait`` of a ``clear``; ``kind``, ``content`` and
            ``buffers`` of a ``comm``; ``execution`` (its id) and ``execution_count`` of a ``begun``;
            ``prompt`` and ``password`` of an ``input``;
            `PendingApproval.to_dict` of an ``approval``; ``id`` and ``state`` of a ``decided``; ``dropped``, how many events
            are no longer kept, of a ``gap``;
            `CodeExecutionResult.to_dict` of a ``result``; ``error``, ``message`` and ``ran`` (``no``, ``yes`` or ``unknown``)
            of a ``failed``, if cellblock could not do its part. One of these two is the last.
    """

    seq: int
    kind: EventKind
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON data."""
        return {"seq": self.seq, "kind": self.kind, "data": dict(self.data)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExecutionEvent:
        """Return the event that `to_dict` has written."""
        return cls(data["seq"], data["kind"], data["data"])

    @property
    def result(self) -> CodeExecutionResult:
        """The result, of a ``result``."""
        return CodeExecutionResult.from_dict(self.data)


def outcome_of(last: ExecutionEvent | None, execution: str) -> CodeExecutionResult:
    """Return the result of an execution.

    Args:
        last: Its last event; None if there was none.
        execution: Its id.

    Raises:
        OutcomeUnknownError: Nobody can say how far it ran.
        CellblockError: It could not be run.
    """
    if last is not None and last.kind == "result":
        return last.result
    raise failure(last.data if last is not None and last.kind == "failed" else {}, execution)


@dataclass(frozen=True, slots=True)
class PendingApproval(Plain):
    """A call that waits for a decision, or a question for an answer, which any client may give that has the right to.

    Attributes:
        id: Cannot be guessed, and is valid for one decision.
        session: The id of the session whose code asks.
        session_name: Its name.
        execution: The id of the execution during which it asked; empty if none ran.
        kind: ``tool``, ``shell``, ``network`` or ``server``; or ``question``, if an MCP server wants a form filled in.
        server: The MCP server's name, or ``shell``, or ``network``.
        tool: The tool's name; empty for a question.
        arguments: The arguments, as they will be executed. Of a question, the ``message`` and the ``schema`` of the form.
        since: When it began to wait, in seconds since the epoch.
        text: All of it in one line, in which nothing hides.
        changed: How the tool differs from the one that its API was generated for; empty if it does not.
        state: ``pending``; ``withdrawn`` if the daemon ended while it waited, and its call with it.
    """

    id: str
    session: str
    session_name: str
    execution: str
    kind: str
    server: str
    tool: str
    arguments: Mapping[str, Any]
    since: float = field(default_factory=time.time)
    text: str = ""
    changed: str = ""
    state: Literal["pending", "withdrawn"] = "pending"


@dataclass(frozen=True, slots=True)
class Permission(Plain):
    """A permission for the rest of a session. It can be revoked.

    Attributes:
        id: Its id.
        session: The id of the session.
        session_name: Its name.
        scope: ``tool``: whatever the arguments; ``call``: with exactly these arguments.
        kind: ``tool``, ``shell``, ``network`` or ``server``.
        server: The MCP server's name, or ``shell``, or ``network``.
        tool: The tool's name.
        text: The call that it was given for, in one line.
        by: Who has given it, if that is known.
        since: When, in seconds since the epoch.
        root: The directory that the server is registered for; empty for all sessions, and for what is not a server.
        digest: The digest of the server's parameters: another server of the same name is not covered.
    """

    id: str
    session: str
    session_name: str
    scope: Literal["tool", "call"]
    kind: str
    server: str
    tool: str
    text: str = ""
    by: str = ""
    since: float = field(default_factory=time.time)
    root: str = ""
    digest: str = ""
