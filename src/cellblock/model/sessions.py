"""Named sessions and their executions, as every interface shows them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from cellblock.errors import failure
from cellblock.model import CodeExecutionResult
from cellblock.model.plain import Plain

OWN_KERNEL = "python3"
"""The kernelspec that stands for cellblock's own kernel."""

Language = Literal["python", "bash"]

SessionStatus = Literal["running", "idle", "dead", "unknown"]
"""``running``: a cell runs. ``idle``: none does. ``dead``: its kernel ended, and the next cell gets a fresh one."""

ExecutionState = Literal["queued", "running", "done", "unknown"]
"""``unknown``: it was running when the process that ran it was killed, and it may have run in part."""

EventKind = Literal["begun", "stream", "display", "clear", "comm", "input", "approval", "decided", "gap", "failed", "result"]


_ID = re.compile("[0-9a-f]{32}")


def mark_of(number: str) -> str:
    """Return the mark of a cluster node, which ends the ids of its sessions and executions.

    Args:
        number: An id, or a name, which has no mark.
    """
    return number[-8:] if _ID.fullmatch(number) else ""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A named session.

    Attributes:
        kernel_id: Globally unique id.
        name: Name.
        created_at: Creation time (ISO 8601, UTC).
        last_used_at: Time of last use.
        status: Current state.
        tags: Labels from its creator.
        workspace: Working directory.
        isolate: Isolation of its kernel; ``none`` without a sandbox.
        kernel_type: The Jupyter kernelspec; ``python3`` for cellblock's own kernel.
        attempt_count: Number of attempts of `execute_with_retry` in it.
        branch_of: Id of the forked session; empty unless it is a branch.
        branch_at: Number of the forked session's last cell then.
        connection_file: Empty, because there is no connection file. For compatibility with KernelBox.
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
        """The name, for compatibility with KernelBox."""
        return self.name

    @property
    def age_seconds(self) -> float:
        """Seconds since its creation."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.created_at)).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data."""
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
        """Return the record from the data of `to_dict`. Fields of later versions are ignored."""
        return cls(**{name: value for name, value in data.items() if name in cls.__dataclass_fields__})


KernelRecord = SessionRecord
"""KernelBox's name for it."""


@dataclass(frozen=True, slots=True)
class ExecutionRecord(Plain):
    """An execution in a named session, which can be followed and queried later by its id.

    Attributes:
        id: Globally unique id.
        session: Id of its session.
        state: Its progress.
        submitted: Time of submission, in seconds since the epoch.
        begun: Start time, or None.
        ended: End time, or None.
        key: The idempotency key of its submission; may be empty.
    """

    id: str
    session: str
    state: ExecutionState = "queued"
    submitted: float = 0.0
    begun: float | None = None
    ended: float | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionEvent(Plain):
    """An event of an execution.

    Attributes:
        seq: Number in the execution, from 1 on, without gaps.
        kind: The kind of event, which determines `data`.
        data: JSON data, in which images and similar values can be bytes: ``name`` and ``text`` of a ``stream``;
            `OutputItem.to_dict` of a ``display``; ``wait`` of a ``clear``; ``kind``, ``content`` and ``buffers`` of a
            ``comm``; ``execution`` (its id) and ``execution_count`` of a ``begun``; ``prompt`` and ``password`` of an
            ``input``; `PendingApproval.to_dict` of an ``approval``; ``id`` and ``state`` of a ``decided``; ``dropped``, the
            number of dropped events, of a ``gap``; `CodeExecutionResult.to_dict` of a ``result``; ``error``, ``message`` and
            ``ran`` (``no``, ``yes`` or ``unknown``) of a ``failed``, for an error of cellblock itself. A ``result`` or a
            ``failed`` is the last event.
    """

    seq: int
    kind: EventKind
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> CodeExecutionResult:
        """The result, for a ``result`` event."""
        return CodeExecutionResult.from_dict(self.data)


def outcome_of(last: ExecutionEvent | None, execution: str) -> CodeExecutionResult:
    """Return the result of an execution.

    Args:
        last: Its last event, if any.
        execution: Its id.

    Raises:
        OutcomeUnknownError: It is unknown how far it ran.
        CellblockError: It could not be run.
    """
    if last is not None and last.kind == "result":
        return last.result
    raise failure(last.data if last is not None and last.kind == "failed" else {}, execution)


@dataclass(frozen=True, slots=True)
class PendingApproval(Plain):
    """A call that waits for a decision, or a question that waits for an answer. Any authorized client may respond.

    Attributes:
        id: Unguessable id, valid for one decision.
        session: Id of the session whose code asks.
        session_name: Name of the session.
        execution: Id of the execution during which it asked; empty if none ran.
        kind: ``tool``, ``shell``, ``network``, ``http`` or ``server``; or ``question``, for a form of an MCP server.
        server: The MCP server's name, or ``shell``, or ``network``.
        tool: The tool's name; empty for a question.
        arguments: The exact arguments to execute. For a question, the ``message`` and the ``schema`` of the form.
        since: Start of the wait, in seconds since the epoch.
        text: The whole call in one line, without hidden characters.
        changed: How the tool differs from its generated API; empty if it does not.
        state: ``pending``, or ``withdrawn`` if the daemon ended while the call waited.
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
    """A permission for the rest of a session, which can be revoked.

    Attributes:
        id: Id.
        session: Id of the session.
        session_name: Name of the session.
        scope: ``tool`` for any arguments; ``call`` for exactly these arguments.
        kind: ``tool``, ``shell``, ``network``, ``http`` or ``server``.
        server: The MCP server's name, or ``shell``, or ``network``.
        tool: The tool's name.
        text: The permitted call, in one line.
        by: Who permitted it, if known.
        since: Time in seconds since the epoch.
        root: The directory for which the server is registered; empty for all sessions, and for kinds other than servers.
        digest: The digest of the server's parameters, so that another server of the same name is excluded.
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
