"""Pending approvals of named sessions, and their standing permissions."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cellblock.errors import InvalidInputError
from cellblock.model.sessions import PendingApproval, Permission, SessionRecord
from cellblock.service.store.session_registry import SessionRegistry
from cellblock.tools.approvals.broker import Broker, is_current, origin_of
from cellblock.tools.approvals.elicitation import Elicitation, check_answer
from cellblock.tools.approvals.request import Always, ApprovalRequest, visible

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("cellblock.named")
_MAX_BY = 100
_MAX_REASON = 500
_MAX_TEXT = 1000
_MAX_ENDED = 10_000
_HOW = {"accepted": "was allowed", "rejected": "was denied", "withdrawn": "was withdrawn"}


class _Ended(NamedTuple):
    """How a request ended.

    Attributes:
        said: What the decision said beyond allow or deny: `ApprovalRequest.always`, or the digest of the answer to a
            question.
    """

    id: str
    session: str
    session_name: str
    kind: str
    state: str
    said: str
    why: str

    def is_same(self, state: str, always: str, answer: Mapping[str, Any]) -> bool:
        """Return whether a decision repeats the one already made, for example when a button is pressed twice."""
        if self.state != state or state == "rejected":
            return self.state == state
        return not always and _digest(answer) == self.said if self.kind == "question" else always in ("", self.said)


class PendingApprovals:
    """All pending requests by id, and the permissions of all sessions.

    Attributes:
        on_change: Called when a request starts or stops waiting.
    """

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry
        self._waiting: dict[str, tuple[PendingApproval, ApprovalRequest]] = {}
        self._questions: dict[str, tuple[PendingApproval, Elicitation, asyncio.Future[Mapping[str, Any] | None]]] = {}
        self._brokers: dict[str, Broker] = {}
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        """How requests have ended, for those who decide too late or twice."""
        self.on_change: Callable[[], object] = lambda: None

    def add(self, pending: PendingApproval, request: ApprovalRequest, then: Callable[[str], object]) -> None:
        """Add a request until it is decided or withdrawn.

        Args:
            pending: The request in its public form, for clients.
            request: The request.
            then: Called with the request's state when it is no longer pending.
        """
        if request.state != "pending":
            then(request.state)
            return
        self._waiting[pending.id] = (pending, request)
        self._registry.add_request(pending)
        self.on_change()

        def done(request: ApprovalRequest) -> None:
            self._waiting.pop(pending.id, None)
            self._registry.end_request(pending.id)
            self._note_end(pending, request.state, request.reason, request.by, request.always or "")
            self.on_change()
            then(request.state)

        request.add_done_callback(done)

    async def ask(self, pending: PendingApproval, elicitation: Elicitation) -> Mapping[str, Any] | None:
        """Wait for the answer to a question of an MCP server.

        Args:
            pending: The question in its public form, for clients.
            elicitation: The question.

        Returns:
            Values that fit the form; None for a refusal.
        """
        answer: asyncio.Future[Mapping[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._questions[pending.id] = pending, elicitation, answer
        self._registry.add_request(pending)
        self.on_change()
        try:
            return await answer
        finally:
            del self._questions[pending.id]
            self._registry.end_request(pending.id)
            if pending.id not in self._ended:
                self._note_end(pending, "withdrawn")
            self.on_change()

    def _note_end(self, pending: PendingApproval, state: str, reason: str = "", by: str = "", said: str = "") -> None:
        who = f" by {by}" if by else ""
        why = f"the request {pending.id} {_HOW[state]} already{who}{f' ({reason})' if reason else ''}"
        self._ended[pending.id] = _Ended(pending.id, pending.session, pending.session_name, pending.kind, state, said, why)
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    def why_ended(self, number: str, session: str = "") -> str:
        """Return how a request ended; empty if it is pending, unknown, or belongs to another session."""
        if number in self._ended:
            ended = self._ended[number]
            return ended.why if _is_of(ended, session) else ""
        before = any(one.id == number and _is_of(one, session) for one in self._registry.withdrawn_requests())
        return f"the request {number} was withdrawn when the daemon ended, together with its call" if before else ""

    def waiting(self, session: str | None = None, *, withdrawn: bool = False) -> list[PendingApproval]:
        """Return pending requests, oldest first.

        Args:
            session: The id of a session; None for all.
            withdrawn: Whether to include requests that were pending when the last process ended.
        """
        before = self._registry.withdrawn_requests(session) if withdrawn else []
        asked = [pending for pending, _, answer in self._questions.values() if not answer.done()]
        now = sorted([*(pending for pending, _ in self._waiting.values()), *asked], key=lambda pending: pending.since)
        return before + [pending for pending in now if session in (None, pending.session)]

    async def decide(
        self,
        ids: tuple[str, ...],
        *,
        allow: bool,
        always: str = "",
        by: str = "",
        answer: Mapping[str, Any] | None = None,
        reason: str = "",
        session: str = "",
    ) -> list[str]:
        """Decide requests, and answer questions. The operation is idempotent.

        Args:
            ids: The requests.
            allow: Whether to allow them.
            always: ``tool`` or ``call`` to make the decision permanent (`ApprovalRequest.accept`).
            by: Who decides, for the audit record.
            answer: The values by field, for questions of MCP servers.
            reason: The reason for a denial, shown to the code that asked.
            session: Only requests of this session (name or id); empty for all.

        Returns:
            The ids of requests that are now decided this way, including those that already were.

        Raises:
            InvalidInputError: `always` is invalid or comes with a denial, or the answer does not fit a question's form.
                Nothing was decided.
        """
        if always not in ("", "tool", "call") or (always and not allow):
            raise InvalidInputError("always must be 'tool' or 'call', and needs an allowed call")
        state = "accepted" if allow else "rejected"
        before = [
            name
            for name in ids
            if (ended := self._ended.get(name)) and _is_of(ended, session) and ended.is_same(state, always, answer or {})
        ]
        decided = before + self._answer(ids, (answer or {}) if allow else None, always, session)
        for name in ids:
            pending, request = self._waiting.get(name, (None, None))
            if pending is None or request is None or not _is_of(pending, session):
                continue
            if request.state != "pending":  # its answer is being sent
                decided += [name] if request.state == state and always in ("", request.always) else []
                continue
            request.by = visible(by)[:_MAX_BY]
            if allow:
                await request.accept(cast("Always", always) if always else None)
            else:
                await request.reject(visible(reason)[:_MAX_REASON])
            decided.append(name)
        return decided

    def _answer(self, ids: tuple[str, ...], content: Mapping[str, Any] | None, always: str, session: str) -> list[str]:
        """Answer the questions among the requests; return the ids that were still pending."""
        questions = [self._questions[name] for name in dict.fromkeys(ids) if name in self._questions]
        asked = [each for each in questions if not each[2].done() and _is_of(each[0], session)]
        if asked and always:
            raise InvalidInputError("a question of an MCP server needs an answer each time: leave out 'always'")
        answers = [None if content is None else check_answer(elicitation, content) for _, elicitation, _ in asked]
        for (pending, _, answer), filled_in in zip(asked, answers, strict=True):
            answer.set_result(filled_in)
            self._note_end(pending, "rejected" if filled_in is None else "accepted", said=_digest(filled_in or {}))
        return [pending.id for pending, _, _ in asked]

    # -- permissions ---------------------------------------------------------------------------------------------------

    def join(self, record: SessionRecord, broker: Broker) -> None:
        if self._brokers.get(record.kernel_id) is broker:
            return
        self._brokers[record.kernel_id] = broker
        for permission, key in self._registry.permissions(record.kernel_id):
            if is_current(key):
                broker.remember(key)
            else:  # no server is named
                self._registry.revoke(permission.id)

        def keep(request: ApprovalRequest, key: tuple[str, ...]) -> None:
            self._registry.allow(
                Permission(
                    id=secrets.token_hex(8),
                    session=record.kernel_id,
                    session_name=record.name,
                    scope="tool" if request.always == "tool" else "call",
                    kind=request.kind,
                    server=request.server_name,
                    tool=request.tool_name,
                    text=_beginning(str(request)),
                    by=request.by,
                    root=origin_of(key).root,
                    digest=origin_of(key).digest,
                ),
                key,
            )

        broker.on_always = keep

    def allowed(self, session: str | None = None) -> list[Permission]:
        """Return the permissions of one session, or of all, oldest first."""
        return [permission for permission, key in self._registry.permissions(session) if is_current(key)]

    def revoke(self, ids: tuple[str, ...]) -> list[str]:
        """Revoke permissions: later matching calls need a decision again. Return the ids that existed."""
        revoked = []
        for permission, key in self._registry.permissions():
            if permission.id in ids:
                self._registry.revoke(permission.id)
                if (broker := self._brokers.get(permission.session)) is not None:
                    broker.revoke(key)
                _log.info("revoked in session %s: %s %s", permission.session_name, permission.scope, permission.tool)
                revoked.append(permission.id)
        return revoked

    def forget(self, session: str) -> None:
        """Delete the permissions of a session that gets a new kernel."""
        self._registry.forget_permissions(session)

    def leave(self, session: str) -> None:
        """Drop the broker of an ended session."""
        self._brokers.pop(session, None)


def _beginning(text: str) -> str:
    """Return the stored part of a permitted call, marked if it was cut."""
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}… [{len(text) - _MAX_TEXT:,} more characters: 'cellblock approvals list --json' shows them]"


def _is_of(request: PendingApproval | _Ended, session: str) -> bool:
    return session in ("", request.session, request.session_name)


def _digest(answer: Mapping[str, Any]) -> str:
    """Return a digest that stands for an answer to a question, because answers can be long."""
    return hashlib.sha256(json.dumps(answer, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
