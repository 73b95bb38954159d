"""The activity of all sessions: what each does, pending approvals, refusals, and figures over time."""

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
        kernel_id: Its id.
        name: Its name.
        status: As in `SessionRecord`.
        created_at: When it was made (ISO 8601, UTC).
        used: When it was last used, in seconds since the epoch.
        tags: Labels that its maker gave it.
        workspace: The directory that it works in.
        isolate: How its kernel is isolated.
        kernel_type: The Jupyter kernelspec.
        branch_of: The id of the session that it was made from; empty unless it is a branch.
        branch_at: How many cells that session had counted then.
        execution: The id of the running execution; empty if none runs.
        began: When that began, in seconds since the epoch.
        code: The first line of its code, or of the last one's.
        said: The end of its output so far.
        queued: How many executions wait.
        cells: The number of the last cell.
        checkpoints: How many checkpoints there are.
        memory: Bytes that its processes use, in whole MiB; 0 if that is not measured.
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
    """Something that code wanted, and did not get.

    Attributes:
        id: Its number in this process.
        at: When, in seconds since the epoch.
        session: The id of the session.
        session_name: Its name.
        kind: ``host``: a connection; ``call``: a tool, a command or a host that was denied; ``file``: a path; ``limit``: a
            time or memory that was used up.
        what: The refused request, in words.
        why: Why it was refused.
        remedy: The setting that would allow it; empty if there is none.
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
    """Figures of one moment.

    Attributes:
        at: When, in seconds since the epoch.
        sessions: How many sessions there are.
        running: How many executions run.
        waiting: How many wait.
        memory: Bytes that all sessions use.
        checkpoints: How many checkpoints there are.
        cells: How many cells have ended since the daemon has started.
        failures: How many of them have not succeeded.
        started: How many sessions have started since then.
        start_ms: How long the last start took, in milliseconds.
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
    """The changes since an earlier moment.

    Attributes:
        position: The moment, for `Watch`: a watcher that continues from it misses nothing.
        fresh: Whether this begins anew: what was known before no longer counts.
        sessions: Sessions that are new, or do something else.
        ended: The ids of those that have ended.
        approvals: Approvals that have become pending since then.
        decided: The ids of what waits no longer.
        refusals: Refusals since then.
        samples: Figures since then.
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
        id: The id of its execution.
        session: The id of the session that it ran in; a branch has the cells of the session that it was made from.
        state: As in `ExecutionRecord`.
        submitted: When it was submitted, in seconds since the epoch.
        begun: When it began to run, or None.
        ended: When it ended, or None.
        code: Its code; of long code, the beginning.
        status: How it ended; empty if it has not, or if it left no trace.
        execution_count: Its number in the session, or None.
        abandoned: Whether the session has gone back to a state from before it.
        after: The id of the cell that led to the state in which it began; empty if there is none, or if that is not known.
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
class DecisionRecord(Plain):
    """A decision about something that code asked for, from the record of decisions.

    Attributes:
        at: When, in seconds since the epoch.
        outcome: ``allow`` or ``deny``.
        by: Who decided: a rule, a person, the caller, or nobody.
        kind: ``tool``, ``shell``, ``network`` or ``server``.
        server: The MCP server's name, or ``shell``, or ``network``.
        tool: The tool's name.
        arguments: The arguments as canonical JSON; of long ones, the beginning.
        reason: Why it was denied.
        result: The beginning of what the call returned, if it was one of a tool and not long ago.
        session: The id of the session that asked.
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
