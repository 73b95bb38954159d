"""The activity of all sessions: status, pending approvals, refusals, and figures over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cellblock.model.plain import Plain
from cellblock.model.sessions import ExecutionState, PendingApproval, SessionStatus

RefusalKind = Literal["host", "call", "file", "limit"]


@dataclass(frozen=True, slots=True)
class SessionActivity(Plain):
    """A session and its current activity.

    Attributes:
        kernel_id: Id.
        name: Name.
        status: As in `SessionRecord`.
        created_at: Creation time (ISO 8601, UTC).
        used: Time of last use, in seconds since the epoch.
        tags: Labels from its creator.
        workspace: Working directory.
        isolate: Isolation of its kernel.
        kernel_type: The Jupyter kernelspec.
        branch_of: Id of the forked session; empty unless it is a branch.
        branch_at: Number of cells that the forked session had counted then.
        execution: Id of the running execution; empty if none runs.
        began: Start of that execution, in seconds since the epoch.
        code: The first line of its code, or of the last execution's.
        said: The end of its output so far.
        queued: Number of waiting executions.
        cells: Number of the last cell.
        checkpoints: Number of checkpoints.
        memory: Memory use in bytes, in whole MiB; 0 if not measured.
    """

    kernel_id: str
    name: str
    status: SessionStatus
    created_at: str
    used: float
    tags: Mapping[str, str] = field(default_factory=dict)
    workspace: str = ""
    isolate: str = ""
    kernel_type: str = ""
    branch_of: str = ""
    branch_at: int = 0
    execution: str = ""
    began: float | None = None
    code: str = ""
    said: str = ""
    queued: int = 0
    cells: int = 0
    checkpoints: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Refusal(Plain):
    """A request of code that was refused.

    Attributes:
        id: Number in this process.
        at: Time in seconds since the epoch.
        session: Id of the session.
        session_name: Name of the session.
        kind: ``host``: a connection; ``call``: a denied tool, command or host; ``file``: a path; ``limit``: an exceeded time
            or memory limit.
        what: The refused request, in words.
        why: Why it was refused.
        remedy: The setting that would allow it; empty if none.
    """

    id: str
    at: float
    session: str
    session_name: str
    kind: RefusalKind
    what: str
    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Sample(Plain):
    """Figures at one time.

    Attributes:
        at: Time in seconds since the epoch.
        sessions: Number of sessions.
        running: Number of running executions.
        waiting: Number of waiting executions.
        memory: Memory of all sessions in bytes.
        checkpoints: Number of checkpoints.
        cells: Number of cells ended since the start of the daemon.
        failures: Number of those that did not succeed.
        started: Number of sessions started since then.
        start_ms: Duration of the last start, in milliseconds.
    """

    at: float
    sessions: int
    running: int
    waiting: int
    memory: int
    checkpoints: int
    cells: int
    failures: int
    started: int
    start_ms: float


@dataclass(frozen=True, slots=True)
class Change(Plain):
    """The changes since an earlier position.

    Attributes:
        position: The position, for `Watch`: a watcher that continues from it misses nothing.
        fresh: Whether this replaces everything known before.
        sessions: New and changed sessions.
        ended: Ids of ended sessions.
        approvals: New pending approvals.
        decided: Ids of approvals that are no longer pending.
        refusals: New refusals.
        samples: New figures.
    """

    position: str
    fresh: bool = False
    sessions: list[SessionActivity] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    approvals: list[PendingApproval] = field(default_factory=list)
    decided: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CellRecord(Plain):
    """A cell of a session.

    Attributes:
        id: Id of its execution.
        session: Id of the session that ran it. A branch includes the cells of the forked session.
        state: As in `ExecutionRecord`.
        submitted: Time of submission, in seconds since the epoch.
        begun: Start time, or None.
        ended: End time, or None.
        code: The code; the beginning of long code.
        status: How it ended; empty if it has not, or was silent.
        execution_count: Number in the session, or None.
        abandoned: Whether the session was restored to an earlier state.
        after: Id of the cell that led to its initial state; empty if none or it is unknown.
    """

    id: str
    session: str
    state: ExecutionState
    submitted: float
    begun: float | None
    ended: float | None
    code: str
    status: str
    execution_count: int | None
    abandoned: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class FoundSession(Plain):
    """A session that a search has found.

    Attributes:
        kernel_id: Id.
        name: Name.
        created_at: Creation time (ISO 8601, UTC).
        used: Submission time of its last cell that matches, in seconds since the epoch; without one, when it ended or was
            created.
        ended: When it ended, in seconds since the epoch; None if it exists.
        tags: Labels from its creator.
        workspace: Working directory.
        cell: Id of its last cell that matches; empty if only its name, labels or directory match.
        code: The line of that cell that matches, or its first line.
    """

    kernel_id: str
    name: str
    created_at: str
    used: float
    ended: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    workspace: str = ""
    cell: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class RequestRecord(Plain):
    """An HTTPS request to a host with secrets or request lines, without its query, headers and body.

    Attributes:
        at: Time in seconds since the epoch.
        method: The method.
        host: The host as ``host:port``.
        path: The path; the beginning of a long one.
        status: The status of the response; 0 without one.
        bytes: Size of the response's body.
        secrets: The names of the secrets in the request.
        decision: Whether it was ``allowed`` or ``refused``.
    """

    at: float
    method: str
    host: str
    path: str
    status: int
    bytes: int
    secrets: tuple[str, ...]
    decision: Literal["allowed", "refused"]


@dataclass(frozen=True, slots=True)
class SecretRecord(Plain):
    """A secret of a session, without its value.

    Attributes:
        name: Its name, also of the variable with the placeholder.
        source: The source of the value, such as ``env:ACME_KEY``. Of a command, only the program.
        hosts: The hosts that receive it, as ``host:port``.
        places: The places in requests to these hosts, such as ``header X-Key: {}``.
        last_used: Time of its last request, in seconds since the epoch; None if it was not used since the session's process
            started.
    """

    name: str
    source: str
    hosts: tuple[str, ...]
    places: tuple[str, ...]
    last_used: float | None = None


@dataclass(frozen=True, slots=True)
class DecisionRecord(Plain):
    """A decision about a request of code, from the audit trail.

    Attributes:
        at: Time in seconds since the epoch.
        outcome: ``allow`` or ``deny``.
        by: Who decided: a rule, a person, the caller, or ``nobody``.
        kind: ``tool``, ``shell``, ``network``, ``http`` or ``server``.
        server: The MCP server's name, or ``shell``, or ``network``.
        tool: The tool's name.
        arguments: The arguments as canonical JSON; the beginning of long ones.
        reason: Why it was denied.
        result: The beginning of the result of a recent tool call.
        session: Id of the session that asked.
    """

    at: float
    outcome: Literal["allow", "deny"]
    by: str
    kind: str
    server: str
    tool: str
    arguments: str
    reason: str = ""
    result: str = ""
    session: str = ""
