"""Operations on the daemon and its sessions, and requests of editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from cellblock.errors import NotFoundError
from cellblock.operations.base import Limits, Request, Route, all_of_them, in_order_of, one_after_the_other

if TYPE_CHECKING:
    from cellblock import model
    from cellblock.model import sessions
    from cellblock.operations.data import Data


_Cursor = Annotated[int, Limits(ge=-1, le=2**31)]


def _joined_about(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the status of a cluster: total counts, and every node's problems."""
    if not answers:
        raise NotFoundError("no node of the cluster can be reached: 'cellblock cluster status' shows why")
    sums = {name: sum(one[name] for one in answers) for name in _COUNTED}
    first = min(answers, key=lambda one: float(one["started"]))
    limits = {
        name: None if None in (values := [one["limits"][name] for one in answers]) else sum(values) for name in first["limits"]
    }
    problems = [problem for one in answers for problem in one["problems"]]
    failing = "; ".join(one["failing"] for one in answers if one["failing"]) if all(one["failing"] for one in answers) else ""
    return first | sums | {"limits": limits, "problems": problems, "failing": failing}


_COUNTED = ("clients", "sessions", "running", "waiting", "memory")


class Hello(Request[dict[str, Any]], op="hello"):
    """The first request on a connection. Answered by ``protocol``, ``version``, ``pid`` and ``started``."""

    protocol: int
    version: str


class About(Request[dict[str, Any]], op="about", repeatable=True, join=_joined_about):
    """Get the status of the daemon.

    Answered by its ``pid``, the pid of the ``custodian``, its ``version``, ``protocol``, ``started`` and ``uptime``, the
    numbers of ``clients``, ``sessions``, and ``running`` and ``waiting`` executions, ``memory`` in bytes, ``limits``,
    ``problems``, a list of texts, ``failing``: why no new code runs, or an empty text, and ``figures``: counters
    (`common.telemetry.Figures`).
    """


class End(Request[bool], op="end", join=all_of_them):
    """End the daemon and all of its sessions, except durable ones, which are saved, and continue with the next daemon.

    Attributes:
        keep: Whether the other sessions stay listed, too; they lose their kernels and variables.
    """

    keep: bool = False


class Census(Request[dict[str, Any]], op="census", repeatable=True):
    """Return the existing sessions, for the director of a cluster.

    Answered by the ``names`` of sessions that exist or are being made, and of those that were ``made`` since the last census,
    the ``time`` of the census (`service.daemon.lease.now`), which modules are ``warm`` (preloaded already), the marks
    of the nodes on which sessions were made (``origins``), and the answer of `About`.
    """


class Create(Request["Data[sessions.SessionRecord]"], op="create"):
    """Create a session, or return the existing session of that name.

    Attributes:
        name: Its name; empty for a new unique name.
        options: Its options (`named.options`), as JSON data.
        tags: Labels of a new session.
        fresh: Whether an existing session of that name is an error.
        bound: Whether it ends with the connection of this request. It must then be `fresh`.
        grant: In a cluster: the placement for its node (`Lease.check`).
        chosen: The names of the options that the caller chose. An existing session must have them.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    bound: bool = False
    grant: str = ""
    chosen: tuple[str, ...] = ()

    @property
    def may_repeat(self) -> bool:
        """Whether an existing session is no error: a repeated request then returns it."""
        return not self.fresh


class List(
    Request["list[Data[sessions.SessionRecord]]"],
    op="list",
    repeatable=True,
    route=Route("GET", "/kernels", "List the sessions", scope="read", within="kernels"),
    join=in_order_of("created_at"),
):
    """List the token's sessions, oldest first.

    Attributes:
        refresh: Whether to check first that their kernels are alive.
    """

    refresh: bool = False


class Status(
    Request["Data[sessions.SessionRecord]"],
    op="status",
    repeatable=True,
    route=Route("GET", "/kernels/{session}", "Get the status of a session", scope="read", within="kernel"),
):
    """Return the status of a session."""

    session: str


class Restart(
    Request["Data[sessions.SessionRecord]"],
    op="restart",
    repeatable=True,
    route=Route("POST", "/kernels/{session}/restart", "Restart a session with a fresh kernel"),
):
    """Give a session a fresh kernel, without variables."""

    session: str


class Destroy(
    Request[bool],
    op="destroy",
    repeatable=True,
    route=Route("DELETE", "/kernels/{session}", "End a session", within="destroyed"),
):
    """End a session, with its variables."""

    session: str


class Wipe(
    Request[list[str]],
    op="wipe",
    repeatable=True,
    route=Route("DELETE", "/kernels", "End all sessions", scope="admin", within="destroyed"),
    join=one_after_the_other,
):
    """End all sessions, of all programs."""


class Interrupt(
    Request[bool],
    op="interrupt",
    route=Route("POST", "/kernels/{session}/interrupt", "Interrupt running code", within="done", without=("key",)),
):
    """Interrupt running code in a session; its variables stay.

    Answered by whether something ran, after the code has stopped.

    Attributes:
        session: The session.
        key: If given, only the execution with this key is stopped or cancelled.
    """

    session: str
    key: str = ""

    @property
    def may_repeat(self) -> bool:
        """Whether there is a key: without one, the request could stop code that starts meanwhile."""
        return bool(self.key)


class Complete(
    Request["Data[model.Completions]"],
    op="complete",
    repeatable=True,
    route=Route("POST", "/sessions/{session}/complete", "Complete code", text="code"),
):
    """Return completions at the cursor.

    The code is the body.

    Attributes:
        session: The session.
        cursor: An index into the code; -1: its end.
    """

    session: str
    cursor: _Cursor = -1


class Inspect(
    Request[str | None],
    op="inspect",
    repeatable=True,
    route=Route("POST", "/sessions/{session}/inspect", "Describe a name", within="text", text="code"),
):
    """Describe the name at the cursor.

    The code is the body.

    Attributes:
        session: The session.
        cursor: An index into the code; -1: its end.
        detail: 1 to include its source.
    """

    session: str
    cursor: _Cursor = -1
    detail: Annotated[int, Limits(ge=0, le=1)] = 0


class History(
    Request["list[Data[model.HistoryEntry]]"],
    op="history",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/history", "List executions", scope="read", within="history"),
):
    """List the cells that the session ran, oldest first."""

    session: str
    count: Annotated[int, Limits(ge=1, le=10_000)] = 1000
