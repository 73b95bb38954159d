"""Decides about the HTTP requests of one session: by lines, by rules, and by a person. Runs in the host."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from cellblock.walls.egress.hang_up import wait_for_answer
from cellblock.walls.egress.lines import METHOD, WEBSOCKET, Lines, Outcome, RequestHead
from cellblock.walls.egress.live import LiveNetwork, check_open_hosts
from cellblock.walls.egress.names import Target, host_text
from cellblock.walls.egress.paths import AmbiguousPathError, readings
from cellblock.walls.egress.rules import Denial, RefusedError, pattern

MOST_BODY = 4 * 1024 * 1024
"""The largest body of a request that a person decides about, in bytes."""
MOST_QUESTIONS = 16
"""Requests of one session that may wait for a person, each with its body."""
_SHOWN = 300
_MOST_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class JudgedRequest:
    """A request to decide about. Its parts may come from hostile code.

    Attributes:
        target: The host and the port.
        method: The method in capitals; `WEBSOCKET` for a request that opens one.
        url: Path and query, with placeholders instead of secrets.
        plain: Whether it is not encrypted.
        secrets: The names of the secrets that it would contain.
    """

    target: Target
    method: str
    url: str
    plain: bool = False
    secrets: tuple[str, ...] = ()


class Approver(Protocol):
    """The rules of a session about requests, and the person who decides."""

    def authorities(self) -> Iterable[str]:
        """Return the hosts that rules are about, as ``host:port``."""

    def by_rule(self, host: str, method: str, path: str) -> Outcome | None:
        """Return the decision of the first rule that matches; None if none does.

        Args:
            host: The host, with its port if that is neither 80 nor 443.
            method: The method.
            path: The decoded path.
        """

    async def decide(self, arguments: dict[str, Any], *, by_person: bool) -> str | None:
        """Decide about a request, and record the decision. Return None if it is allowed, or else the reason.

        Args:
            arguments: What is decided about: the host, the method, the path, the URL, the names of secrets, and the body.
            by_person: Whether a person must decide, even if a rule allows it.
        """


Body = Callable[[], Awaitable[bytes]]
"""Returns the whole body of a request. More than `MOST_BODY` bytes mean that it is too large."""


class RequestJudge:
    """Decides about the requests of one session and its branches.

    Args:
        live: The network with the session's request lines.
        within: Request lines of broader policies, which must allow a request as well.
        approver: The rules and the person, if any.
        on_denied: Called with each refused request.

    Raises:
        InvalidInputError: The hosts include all.
    """

    def __init__(
        self,
        live: LiveNetwork,
        within: Sequence[Lines],
        approver: Approver | None,
        *,
        on_denied: Callable[[Denial], None],
    ) -> None:
        self._live = live
        self._within = tuple(within)
        self._approver = approver
        self._on_denied = on_denied
        self._questions: set[asyncio.Future[str | None]] = set()
        self._seats = 0
        live.judged = live.judged or bool(self._fixed_authorities)
        if self.authorities:
            check_open_hosts(live.state.allow)

    @property
    def _layers(self) -> tuple[Lines, ...]:
        return (self._live.state.lines, *self._within)

    @property
    def _fixed_authorities(self) -> set[str]:
        ruled = () if self._approver is None else self._approver.authorities()
        return {*ruled, *(at for layer in self._within for at in layer.authorities)}

    @property
    def authorities(self) -> set[str]:
        """The hosts that lines or rules are about, as ``host:port``."""
        return {*self._fixed_authorities, *self._live.state.lines.authorities}

    def names(self, target: Target) -> bool:
        """Return whether requests to a host are decided about, on any port: then nothing else is allowed there."""
        return any(layer.names(target.host) for layer in self._layers) or self._rules_name(target)

    def withdraw(self) -> None:
        """Withdraw the open questions, whose requests are refused."""
        for question in self._questions:
            question.cancel()

    async def decide(self, request: JudgedRequest, client: socket.socket, body: Body, *, ask: bool = False) -> None:
        """Decide about a request. Return if it may be sent.

        Args:
            request: The request.
            client: The client's socket. If it hangs up during a question, the question is withdrawn.
            body: Returns the body, called only for a question.
            ask: Whether a person must decide, for example because of a secret.

        Raises:
            RefusedError: The request is refused.
            OSError: The client has hung up.
        """
        try:
            if not METHOD.fullmatch(request.method):
                raise AmbiguousPathError("the method must be in capitals")
            head = RequestHead(request.target, request.method, readings(request.url))
        except AmbiguousPathError as error:
            raise self._refused(request, 400, f"bad request: {error}", f"{request.method}: {error}") from None
        outcome = self._judge(head)
        if outcome is None or outcome == "deny":
            text = f"{_named(request)} is not allowed{self._advice(head, request, denied=outcome == 'deny')}"
            raise self._refused(request, 403, f"{text}. Do not retry.", text)
        reason = None
        if outcome == "ask" or ask:
            reason = await self._asked(request, head, client, body)
            # The lines may have changed during the question: an answer does not outlast them.
            if reason is None and self._is_outdated(head):
                reason = "the rules have changed"
        elif self._approver is not None and self._rule(head) == "allow":
            reason = await self._approver.decide(_arguments(request, head), by_person=False)
        if reason is not None:
            text = f"{_named(request)} was refused: {reason}"
            raise self._refused(request, 403, f"{text}. Do not retry.", text)

    def _judge(self, head: RequestHead) -> Outcome | None:
        """Combine the lines and the first rule that matches. Only a rule can allow what no line of the session names."""
        if head.method == WEBSOCKET and not self.names(head.target):
            return None  # also if the requests are judged only because a secret needs approval
        layers = self._layers
        own, *within = [layer.judge(head) if layer.names(head.target.host) else "allow" for layer in layers]
        if not layers[0].names(head.target.host) and self.names(head.target):
            own = None if self._rules_name(head.target) else "allow"
        if own == "deny" or any(outcome in (None, "deny") for outcome in within):
            return "deny" if own == "deny" or "deny" in within else None
        ruled = self._rule(head)
        if ruled == "deny":
            return "deny"
        found = own if ruled is None else ruled
        return "ask" if found == "allow" and "ask" in within else found

    def _is_outdated(self, head: RequestHead) -> bool:
        return self._judge(head) in (None, "deny")

    def _rules_name(self, target: Target) -> bool:
        start = f"{host_text(target.host)}:"
        return self._approver is not None and any(at.startswith(start) for at in self._approver.authorities())

    def _rule(self, head: RequestHead) -> Outcome | None:
        """Return the strictest decision of the rules about all readings of a request."""
        if self._approver is None:
            return None
        host = pattern(head.target)
        found = {self._approver.by_rule(host, head.method, path) for path in head.paths}
        if head.method == "HEAD":
            found |= {self._approver.by_rule(host, "GET", path) for path in head.paths}
            found -= {None} if len(found) > 1 else set()
        # A server may ignore a final slash, and parameters of segments: such rules count if they restrict.
        similar = {path.rstrip("/") or "/" for path in head.paths}
        similar |= {"/".join(part.partition(";")[0] for part in path.split("/")) for path in head.paths}
        found |= {one for path in similar if (one := self._approver.by_rule(host, head.method, path)) in ("deny", "ask")}
        if "deny" in found:
            return "deny"
        if None in found and len(found) > 1:
            return "ask" if "ask" in found else None
        return "ask" if "ask" in found else next(iter(found))

    async def _asked(self, request: JudgedRequest, head: RequestHead, client: socket.socket, body: Body) -> str | None:
        """Ask a person. Return None if the request is allowed, or else the reason."""
        if self._approver is None:
            return "a person must allow it, and no person can be asked"
        if why := self._live.why_closed():
            return why
        if self._seats >= MOST_QUESTIONS:
            return f"{MOST_QUESTIONS} requests of this session already wait for approval"
        self._seats += 1
        try:
            content = await body()
            if len(content) > MOST_BODY:
                return f"a person must allow it, and its body has more than {MOST_BODY >> 20} MiB"
            arguments = _arguments(request, head) | _shown_body(content)
            return await self._answer(arguments, client)
        finally:
            self._seats -= 1

    async def _answer(self, arguments: dict[str, Any], client: socket.socket) -> str | None:
        assert self._approver is not None
        question = asyncio.ensure_future(self._approver.decide(arguments, by_person=True))
        self._questions.add(question)
        try:
            await wait_for_answer(question, client)
        finally:
            self._questions.discard(question)
        return "the question was withdrawn" if question.cancelled() else question.result()

    def _advice(self, head: RequestHead, request: JudgedRequest, *, denied: bool) -> str:
        there = self._layers[0].allowed(head.target)
        allowed = f"; allowed there: {there}" if there else ""
        if denied:
            return f": a rule denies it{allowed}"
        line = _short(f"{request.method} {pattern(head.target)}{head.paths[0]}")
        way = f"cellblock network NAME --allow-http {line!r}, or change_network(http=[…])"
        return f"{allowed}. To allow it, the person who runs this session calls {way}"

    def _refused(self, request: JudgedRequest, status: int, text: str, reason: str) -> RefusedError:
        host = host_text(request.target.host)
        shown = ascii(request.method)[1:-1][:_SHOWN]
        self._on_denied(Denial(host, request.target.port, ascii(reason)[1:-1][:_MOST_SHOWN], None, shown))
        return RefusedError(status, text)


@dataclass(slots=True)
class Handover:
    """A connection whose requests `walls.keys` reads.

    Attributes:
        target: The target.
        client: The socket of the client, which stays the caller's.
        upstream: The socket of the server, likewise.
        early: Bytes that the client sent ahead.
        judge: Decides about its requests.
        judged: Whether its requests are decided about.
        redial: Connects to the server again, by the same rules: during a question, the server may close the silent connection.
    """

    target: Target
    client: socket.socket
    upstream: socket.socket
    early: bytes
    judge: RequestJudge
    judged: bool
    redial: Callable[[], Awaitable[socket.socket]]


def _named(request: JudgedRequest) -> str:
    return _short(f"{request.method} {pattern(request.target)}{request.url.partition('?')[0]}")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _arguments(request: JudgedRequest, head: RequestHead) -> dict[str, Any]:
    scheme = "http" if request.plain else "wss" if request.method == WEBSOCKET else "https"
    default = 80 if request.plain else 443
    authority = host_text(request.target.host) if request.target.port == default else str(request.target)
    found: dict[str, Any] = {
        "host": pattern(request.target),
        "method": request.method,
        "path": head.paths[0],
        "url": f"{scheme}://{authority}{request.url}",
    }
    return found | ({"secrets": list(request.secrets)} if request.secrets else {})


def _shown_body(content: bytes) -> dict[str, Any]:
    """Return a body for a question: as text if it is UTF-8."""
    if not content:
        return {}
    with suppress(UnicodeDecodeError):
        return {"body": content.decode()}
    return {"body_base64": base64.b64encode(content).decode()}
