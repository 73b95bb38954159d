"""Decides about requests of code: by rules, earlier answers, or a person."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from cellblock.common import telemetry
from cellblock.common.telemetry import MAX_NAME, MakeStep, untraced
from cellblock.errors import CellblockError
from cellblock.model.decisions import CallKind, Decision
from cellblock.model.untrusted import VALUE_WEIGHT, count_values
from cellblock.tools.approvals.call import NO_ORIGIN, Call, Hints, Origin
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.tools.approvals.rules import Rules, Verdict, decide

Ask = Callable[[ApprovalRequest], bool | None]
"""Shows a request to a person. None: it is decided later; True or False: the caller has decided at once."""

EXPIRED = "no decision arrived within"
"""The beginning of the reason if the time for a decision has run out."""

NOBODY = "this session has no approver, and no rule allows it"
"""The reason if there is no person to ask."""

MAX_PENDING = 4096
MAX_PENDING_BYTES = 32 * 1024 * 1024
"""Bytes of pending requests. Each value of their JSON adds `VALUE_WEIGHT`, as the parsed arguments are kept, too."""

_MAX_REMEMBERED = 10_000

_KEY_VERSION = "2"
"""The version of keys of permissions. Older ones have no identity of the server and match nothing: people are asked again."""

_LONG = 4096
"""Bytes of arguments above which decisions take turns: rules examine all of them."""

_LOG = logging.getLogger("cellblock.tools")


class Broker:
    """A decider for one session, in one event loop.

    Rules come first, then standing permissions of the session (`ApprovalRequest.accept` with `always`), then a person.
    Without a person, the request is denied. Every decision is recorded before it takes effect; if that fails, the request
    is denied.

    Attributes:
        rules: The rules. May be replaced; pending requests stay pending.
        ask: Shows requests to a person, or None. May be replaced.
        timeout: Seconds that a request waits, or None for no limit.
        on_always: Called with a request that was accepted permanently, and its key for `remember` and `revoke`.
        pending: Pending requests by id, oldest first.
        hold: Returns when a request may be decided; raises `StateError` if its code was withdrawn. None: at once.
        step: Starts a trace step for waiting for a decision.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        ask: Ask | None = None,
        timeout: float | None = 60.0,
        record: Callable[[Decision], Awaitable[None]] | None = None,
        *,
        session: str = "",
    ) -> None:
        """Set up.

        Args:
            rules: The rules; by default, a person decides everything.
            ask: Shows a request to a person. It must not block.
            timeout: Seconds that a request waits for its decision, or None for no limit.
            record: Stores a decision, which takes effect when this returns.
            session: The session's id, for the audit record.
        """
        self.rules = rules or Rules()
        self.ask = ask
        self.timeout = timeout
        self.on_always: Callable[[ApprovalRequest, tuple[str, ...]], None] | None = None
        self.pending: dict[str, ApprovalRequest] = {}
        self.hold: Callable[[], Awaitable[None]] | None = None
        self.step: MakeStep = untraced
        self._record = record
        self._session = session
        self._calls: dict[str, Call] = {}
        self._by_caller: set[str] = set()
        self._bytes = 0
        self._remembered: set[tuple[str, ...]] = set()
        self._allowed_servers: dict[str, Origin] = {}
        self._turn = asyncio.Lock()
        self._waited = 0.0
        self._since = 0.0
        self._asked = 0

    @property
    def waited(self) -> float:
        """Seconds spent asking a person so far."""
        return self._waited + (time.monotonic() - self._since if self._asked else 0.0)

    @contextmanager
    def somebody_is_asked(self) -> Iterator[None]:
        """Count the time in this context as `waited`."""
        if not self._asked:
            self._since = time.monotonic()
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked:
                self._waited += time.monotonic() - self._since

    async def decide(
        self,
        kind: CallKind,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        hints: Hints | None = None,
        changed: str = "",
        origin: Origin = NO_ORIGIN,
        *,
        by_person: bool = False,
    ) -> Decision:
        """Decide a call. The arguments are the same as for `Call.freeze`. Cancelling this withdraws the request.

        With `by_person`, a rule can deny the call, but only a person can allow it.

        Returns:
            The recorded decision. Execute `Decision.arguments` and nothing else.

        Raises:
            InvalidInputError: The arguments are not a JSON object, or are nested too deeply.
            StateError: The requesting code was withdrawn.
        """
        if self.hold is not None:
            await self.hold()
        if self._turn.locked():
            async with self._turn:
                await asyncio.sleep(0)  # freezing long arguments takes time, too
        call = Call.freeze(kind, server, tool, arguments, hints, changed, origin)
        verdict = await self._verdict(call)
        if verdict.outcome == "ask" or (by_person and verdict.outcome == "allow"):
            decision = await self._ask(call)
        else:
            reason = f"denied by the rule: {verdict.rule}" if verdict.outcome == "deny" else ""
            decision = self._decision(call, verdict.outcome, verdict.rule, reason)
        return await self._recorded(decision)

    async def _verdict(self, call: Call) -> Verdict:
        verdict = await self._verdict_of_rules(call)
        if call.kind != "tool" or verdict.outcome != "allow" or not verdict.names_server:
            return verdict
        if len(self._allowed_servers) < _MAX_REMEMBERED:
            self._allowed_servers.setdefault(call.server, call.origin)
        # A rule that names a server means the server that had the name when the rule was first used.
        return verdict if self._allowed_servers.get(call.server) == call.origin else Verdict("ask", "default")

    async def _verdict_of_rules(self, call: Call) -> Verdict:
        if len(call.payload) <= _LONG:
            return decide(self.rules, call)
        async with self._turn:
            # One rule and one call at a time: otherwise hundreds of gathered calls would be decided in one iteration of the
            # loop.
            rules = self.rules
            for rule in rules.rules:
                await asyncio.sleep(0)
                if (verdict := decide(Rules((rule,)), call)).rule != "default":
                    return verdict
            return decide(Rules((), rules.default), call)

    def forget(self) -> None:
        """Delete the permissions for the rest of the session."""
        self._remembered.clear()

    def remember(self, key: tuple[str, ...]) -> None:
        """Grant a permission for the rest of the session, by its key from `on_always`."""
        self._remembered.add(key)

    def revoke(self, key: tuple[str, ...]) -> None:
        """Revoke a permission for the rest of the session."""
        self._remembered.discard(key)

    def close(self, reason: str = "the session has ended") -> None:
        """Withdraw pending requests, so that their calls are denied.

        Args:
            reason: The reason, for the waiting code.
        """
        for request in list(self.pending.values()):
            request.withdraw(reason)

    async def _ask(self, call: Call) -> Decision:
        for scope, key in _keys(call).items():
            if key in self._remembered:
                return self._decision(call, "allow", f"person, always for this {scope}")
        if self.ask is None:
            return self._decision(call, "deny", "nobody", NOBODY)
        if len(self.pending) >= MAX_PENDING or self._bytes + (weight := _weight(call)) > MAX_PENDING_BYTES:
            return self._decision(call, "deny", "nobody", "too many requests are waiting for approval")
        request = ApprovalRequest(call.server, call.tool, call.arguments, kind=call.kind, changed=call.changed)
        with self.somebody_is_asked():
            try:
                self._show(request, call, self.ask, weight)
                if request.state == "pending":
                    return await self._answered(call, request)
                return self._decided(call, request)
            finally:
                self._hide(request, weight)

    async def _answered(self, call: Call, request: ApprovalRequest) -> Decision:
        """Wait for a decision, in a trace step with the outcome and the decider."""
        names = {"cellblock.approval.kind": call.kind, "cellblock.server": call.server, "gen_ai.tool.name": call.tool}
        attributes = {name: value[:MAX_NAME] for name, value in names.items()}
        telemetry.add("cellblock.approvals.pending")
        try:
            with self.step("cellblock.approval", attributes, metric="cellblock.approval.wait.duration") as step:
                await self._wait(request)
                decision = self._decided(call, request)
                step.labels = (("cellblock.approval.outcome", decision.outcome),)
                step.set("cellblock.approval.outcome", decision.outcome)
                step.set("cellblock.approval.by", decision.by)
                step.set("cellblock.approval.reason", decision.reason)
                return decision
        finally:
            telemetry.add("cellblock.approvals.pending", -1)

    async def _wait(self, request: ApprovalRequest) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                await request.response()
        except TimeoutError:
            # A decision at the same moment counts, because its decider saw a success.
            request.withdraw(f"{EXPIRED} {self.timeout:g} s")

    def ask_again(self) -> None:
        """Show pending requests again, to a new person."""
        for request in list(self.pending.values()):
            if self.ask is not None:
                self._put(request, self.ask)

    def _show(self, request: ApprovalRequest, call: Call, ask: Ask, weight: int) -> None:
        self.pending[request.id] = request
        self._calls[request.id] = call
        self._bytes += weight
        request.add_done_callback(self._remember)
        self._put(request, ask)

    def _put(self, request: ApprovalRequest, ask: Ask) -> None:
        try:
            at_once = ask(request)
        except CellblockError as error:
            request.withdraw(str(error))
            return
        if at_once is not None and request.state == "pending":
            # Decided by the caller's code: an `execute()` that approves everything.
            self._by_caller.add(request.id)
            request.settle("accepted" if at_once else "rejected")

    def _hide(self, request: ApprovalRequest, weight: int) -> None:
        request.withdraw("the call was cancelled")
        del self.pending[request.id], self._calls[request.id]
        self._by_caller.discard(request.id)
        self._bytes -= weight

    def _decided(self, call: Call, request: ApprovalRequest) -> Decision:
        by = "caller" if request.id in self._by_caller else f"person: {request.by}" if request.by else "person"
        if request.state == "withdrawn":
            return self._decision(call, "deny", "nobody", request.reason)
        if request.state == "rejected":
            return self._decision(call, "deny", by, f"rejected: {request.reason}" if request.reason else "rejected")
        return self._decision(call, "allow", by)

    def _remember(self, request: ApprovalRequest) -> None:
        """Store a permission, and accept pending requests that it covers: gathered calls need only one answer.

        This happens at once, so the next request is decided without asking.
        """
        if request.kind == "network" and request.always == "call":
            return  # the host becomes a line of the session's network (`SessionServices.may_reach`)
        if request.state != "accepted" or request.always is None or len(self._remembered) >= _MAX_REMEMBERED:
            return
        key = _keys(self._calls[request.id])[request.always]
        if key not in self._remembered and self.on_always is not None:
            try:
                self.on_always(request, key)
            except CellblockError as error:
                _LOG.error("earlier permissions cannot be read, so the request is asked again: %s", error)
                return
        self._remembered.add(key)
        for other in list(self.pending.values()):
            if not self._remembered.isdisjoint(_keys(self._calls[other.id]).values()):
                other.settle("accepted")

    def _decision(self, call: Call, outcome: Literal["allow", "deny"], by: str, reason: str = "") -> Decision:
        return Decision(outcome, by, self._session, call.kind, call.server, call.tool, call.payload, time.time(), reason)

    async def _recorded(self, decision: Decision) -> Decision:
        _LOG.info(
            "decision in session %s: %s %s %.200r of %.200r by %s %s",
            *(decision.session, decision.outcome, decision.kind, decision.tool, decision.server, decision.by, decision.reason),
        )
        if self._record is None:
            return decision
        try:
            await self._record(decision)
        except Exception:  # any error of the recorder: nothing may be executed without a record
            _LOG.exception("the decision about %s.%s could not be recorded", decision.server, decision.tool)
            return replace(decision, outcome="deny", by="nobody", reason="the decision could not be recorded")
        return decision


def is_current(key: tuple[str, ...]) -> bool:
    """Return whether a stored permission key can match a call. Keys of older versions cannot."""
    return len(key) in (7, 8) and key[0] == _KEY_VERSION


def origin_of(key: tuple[str, ...]) -> Origin:
    """Return the server of a current permission key."""
    return Origin(key[5], key[6])


def _weight(call: Call) -> int:
    return len(call.payload) + VALUE_WEIGHT * count_values(call.payload)


def _keys(call: Call) -> dict[Literal["tool", "call"], tuple[str, ...]]:
    # Includes the changes of the tool and the identity of the server. A permission for a tool covers neither later versions
    # of the tool nor a tool of another server with the same name. Before registration, a server's identity is its
    # parameters.
    payload = hashlib.sha256(call.payload).hexdigest()
    digest = payload if call.kind == "server" else call.origin.digest
    tool = (_KEY_VERSION, call.kind, call.server, call.tool, call.changed, call.origin.root, digest)
    return {"tool": tool, "call": (*tool, payload)}
