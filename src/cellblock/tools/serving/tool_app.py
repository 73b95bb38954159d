"""Tool calls over HTTP: validation of requests, and the application of a session's tool port."""

from __future__ import annotations

import hmac
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cellblock.common.turns import turns
from cellblock.errors import CellblockError, InvalidInputError
from cellblock.model.untrusted import MAX_VALUES, VALUE_WEIGHT, count_values, parse_json
from cellblock.tools.approvals.broker import EXPIRED
from cellblock.tools.approvals.call import NO_ORIGIN, Origin
from cellblock.tools.approvals.elicitation import Person
from cellblock.tools.mcp.changes import Check, ToolFacts, changes, hints_of
from cellblock.tools.mcp.words import MAX_WORDS, cut

if TYPE_CHECKING:
    from cellblock.model.decisions import Decision
    from cellblock.tools.approvals.broker import Broker
    from cellblock.tools.calling.content import CallTool, ToolOutcome
    from cellblock.tools.serving.http import App, Request

MAX_BODY = 4 * 1024 * 1024
MAX_HELD = 32 * 1024 * 1024
"""Bytes of all requests of one application, each counted from its head to its answer."""
MAX_NAME = 256
_LONG = 16 * 1024
"""Bytes of a body above which parsing, freezing and sending it have turns of the loop of their own: each takes a while."""
_MOST_CHANGES = 3
"""Most decisions about one call, if the server changes the tool meanwhile."""
MAX_LINES = 20
"""Lines per minute about refused requests, in the log and in a session's output: there can be thousands."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

Handler = Callable[[bytes], Awaitable[Mapping[str, Any]]]
"""Calls a tool of one server: `cellblock.tools.mcp.servers.Servers.call` without its first argument."""

_LOG = logging.getLogger("cellblock.tools")


class RefusedError(Exception):
    """A refused request.

    Attributes:
        status: The HTTP status.
        noted: Whether to log it, because well-behaved programs do not send this.
    """

    def __init__(self, status: int, message: str, *, noted: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.noted = noted


@dataclass(frozen=True, slots=True)
class Guard:
    """A check of a request before its body is read.

    Attributes:
        hosts: The names by which the server may be addressed, or None for any. A web page that was redirected here by DNS
            rebinding sends its own name.
        token: The bearer token, or None if none is required.
    """

    hosts: frozenset[str] | None = frozenset(LOOPBACK)
    token: str | None = field(default=None, repr=False)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Check a request's headers.

        Raises:
            RefusedError: The request is refused.
        """
        given: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            given.setdefault(name, []).append(value)
        hosts = [_without_port(value.decode("latin-1").lower()) for value in given.get(b"host", [])]
        if len(hosts) != 1 or (self.hosts is not None and hosts[0] not in self.hosts):
            raise RefusedError(421, "this server does not have that name (the Host header)", noted=True)
        if b"origin" in given:
            raise RefusedError(403, "requests from web pages are not allowed (the Origin header)", noted=True)
        self._check_token(given.get(b"authorization", []))

    def _check_token(self, given: list[bytes]) -> None:
        if self.token is not None:
            wanted = f"Bearer {self.token}".encode()
            if not hmac.compare_digest(b"\n".join(given), wanted):
                raise RefusedError(401, "the bearer token is missing or wrong", noted=True)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The body of a POST to ``/run`` and, without parameters, to ``/approve``.

    Attributes:
        server: The server's name.
        tool: The tool's name.
        arguments: The arguments.
        params: The server's parameters, if given.
        size: Bytes of the body.
    """

    server: str
    tool: str
    arguments: dict[str, Any]
    params: dict[str, Any] | None
    size: int = 0

    @classmethod
    def parse(cls, body: bytes) -> RunRequest:
        """Parse a body.

        Raises:
            RefusedError: The body is invalid.
        """
        try:
            data = parse_json(body, what="the body", counted=True)
        except InvalidInputError as error:
            raise RefusedError(400, str(error)) from error
        known = ("server_name", "server_params", "tool", "arguments")
        if not isinstance(data, dict) or not data.keys() <= {*known}:
            raise RefusedError(400, f"the body must be an object with {', '.join(known)}")
        for key in ("server_name", "tool"):
            name = data.get(key)
            # Lone surrogates, escape sequences and similar characters: such a name would be displayed differently.
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
                raise RefusedError(400, f"{key} must be text of 1 to {MAX_NAME} characters that can be printed")
        params, arguments = data.get("server_params"), data.get("arguments", {})
        if not isinstance(arguments, dict) or not isinstance(params, (dict, type(None))):
            raise RefusedError(400, "arguments and server_params must be objects")
        return cls(data["server_name"], data["tool"], arguments, params, len(body))


def session_app(
    broker: Broker,
    caller: Callable[[str], CallTool | None],
    *,
    facts: Callable[[str, str], ToolFacts | None] | None = None,
    origin: Callable[[str], Origin] = lambda _: NO_ORIGIN,
    note: Callable[[str], None] | None = None,
    token: str | None = None,
    timeout: float | None = None,
    on_progress: Callable[..., Any] | None = None,
    on_log: Callable[..., Any] | None = None,
    on_outcome: Callable[[Decision, ToolOutcome], None] | None = None,
    person: Person | None = None,
) -> App:
    """Create the application for a session's tool port: ``POST /run`` by name, and nothing else.

    Args:
        broker: The session's broker.
        caller: Returns a function that calls the tools of a server; None if the session may not name it. Called once per
            call, so that the decision is about the called server.
        facts: Returns a server's facts about a tool from its registration. Called before the decision, so it must not start
            the server.
        origin: Returns the current identity of a named server.
        note: Called with a line for each refused request.
        token: The required bearer token; None if only the session reaches the port.
        timeout: Limit of one call in seconds, or None for no limit.
        on_progress: Passed to the caller.
        on_log: Passed to the caller.
        on_outcome: Called with the outcome of each call, and the decision about it.
        person: The person whom servers can ask during a call.
    """
    seen: dict[tuple[str, str], ToolFacts] = {}  # bounded by the changed tools

    async def run(body: bytes) -> Mapping[str, Any]:
        request = RunRequest.parse(body)
        _check_params(request)
        call = caller(request.server)
        if call is None:
            wanted = f"to use it, generate its API in the workspace, on the host: generate_mcp_sources({request.server!r}, …)"
            raise RefusedError(403, f"there is no MCP server {request.server!r}; {wanted}", noted=True)
        try:
            known = facts(request.server, request.tool) if facts else None
            which = origin(request.server)
        except CellblockError as error:
            return {"error": str(error), "kind": "server"}
        options = {"timeout": timeout, "on_progress": on_progress, "on_log": on_log, "person": person}
        return await perform(broker, call, request, known, seen, on_outcome=on_outcome, origin=which, **options)

    return http_app(Guard(token=token), {("POST", "/run"): run}, note)


def _check_params(request: RunRequest) -> None:
    if request.params is not None:
        raise RefusedError(403, "server parameters stay on the host; name a server that is registered there", noted=True)


async def perform(
    broker: Broker,
    call: CallTool,
    request: RunRequest,
    known: ToolFacts | None = None,
    seen: dict[tuple[str, str], ToolFacts] | None = None,
    *,
    on_outcome: Callable[[Decision, ToolOutcome], None] | None = None,
    origin: Origin = NO_ORIGIN,
    **options: Any,
) -> Mapping[str, Any]:
    """Decide a call, and execute it if it is allowed.

    A running server may describe its tool differently than at its registration. In this case, the present tool needs
    another decision before the call.

    Args:
        broker: Decides.
        call: Calls the tools of the server.
        request: The request.
        known: The server's facts about the tool from its registration; None if they are unknown.
        seen: Present facts about changed tools, for their next calls; updated here.
        on_outcome: Called with the decision and the tool's outcome.
        origin: The server's identity.
        options: Passed to `call`.

    Returns:
        The answer: ``result`` (bytes if it is already JSON), ``images``, ``resources``; or ``error`` and ``kind``.
    """
    name = f"{request.server}.{request.tool}"
    seen = {} if seen is None else seen
    for _ in range(_MOST_CHANGES):
        now = known if known is None else seen.get((request.server, request.tool), known)
        said = "" if known is None or now is None else changes(known, now)
        hints = hints_of(now) if now else None
        try:
            if request.size > _LONG:
                await turns().give_way()
            decision = await broker.decide("tool", request.server, request.tool, request.arguments, hints, said, origin)
        except InvalidInputError as error:
            raise RefusedError(400, str(error)) from error
        if not decision.allowed:
            return denied(name, decision)
        try:
            if now is not None:
                options["check"] = _checker(now)
            if request.size > _LONG:
                await turns().give_way()
            outcome = await call(request.tool, decision.arguments, **options)
        except ToolChangedError as changed:
            seen[request.server, request.tool] = changed.now
            continue
        except (CellblockError, TimeoutError) as error:
            return {"error": str(error) or f"{name} took too long", "kind": "server"}
        if on_outcome is not None:
            on_outcome(decision, outcome)
        return _said(name, outcome)
    return {"error": f"{name} changes each time that its description is read", "kind": "server"}


class ToolChangedError(Exception):
    """A tool has changed since the decision.

    Attributes:
        now: The tool's present facts.
    """

    def __init__(self, now: ToolFacts) -> None:
        super().__init__()
        self.now = now


def _checker(decided: ToolFacts) -> Check:
    """Return a check before the call that the tool is the decided one."""

    def check(now: ToolFacts) -> None:
        if now != decided:
            raise ToolChangedError(now)

    return check


def denied(name: str, decision: Decision) -> Mapping[str, Any]:
    """Return the answer for a denied call."""
    if decision.reason == "rejected" or decision.reason.startswith("rejected: "):
        return {"error": f"Approval request for {name} {decision.reason}", "kind": "rejected"}
    how = "was not accepted"
    if decision.by == "nobody":
        how = "expired" if decision.reason.startswith(EXPIRED) else "failed"
    return {"error": f"Approval request for {name} {how}: {decision.reason}", "kind": "denied"}


def _said(name: str, outcome: ToolOutcome) -> Mapping[str, Any]:
    if outcome.is_error:
        return {"error": _complaint(outcome) or f"{name} failed without a message", "kind": "tool"}
    data = outcome.to_dict()
    result = outcome.text or None if outcome.structured is None else outcome.structured
    if outcome.encoded is not None:
        result = outcome.encoded
    return {"result": result, "images": data["images"], "resources": data["resources"]}


def _complaint(outcome: ToolOutcome) -> str:
    """Return a tool's description of its failure: its text, or else the rest of its result as text."""
    texts = (resource.text for resource in outcome.resources if resource.text)
    return outcome.text or outcome.beginning(MAX_WORDS) or cut("\n".join(texts))


def http_app(guard: Guard, routes: Mapping[tuple[str, str], Handler], note: Callable[[str], None] | None = None) -> App:
    """Create an application that answers JSON with JSON.

    Args:
        guard: Checks every request.
        routes: Handlers by method and path.
        note: Called with a line for each refused request that well-behaved programs do not send.
    """
    load, lines = _Load(), _Lines(note)

    async def app(request: Request) -> tuple[int, bytes]:
        held = 0
        try:
            guard.check(request.headers)
            handler = routes.get((request.method, request.path))
            if request.websocket:
                raise RefusedError(403, "this path does not exist", noted=True)
            if handler is None:
                raise RefusedError(404, f"{request.method} {request.path[:100]!r} does not exist here", noted=True)
            held += load.hold(_length(request))
            body = await request.body()
            if len(body) > _LONG:
                await turns().give_way()
            if (count := count_values(body)) > MAX_VALUES:
                what = f"the body has more than {MAX_VALUES:,} values (long numbers and escapes count as several)"
                raise RefusedError(400, f"{what}: pass rows as one text, such as CSV, or write them to a file")
            held += load.hold(count * VALUE_WEIGHT)
            return _answer(200, await handler(body))
        except RefusedError as refused:
            lines.add(refused, request)
            return _answer(refused.status, {"error": str(refused), "kind": "refused"})
        except Exception:
            _LOG.exception("a tool call failed")
            return _answer(500, {"error": "the tool server failed; its log says why", "kind": "server"})
        finally:
            load.release(held)

    return app


class _Load:
    """A counter of the memory of requests."""

    def __init__(self) -> None:
        self._size = 0

    def hold(self, size: int) -> int:
        """Count a request, and return its size, for `release`.

        Raises:
            RefusedError: The limit would be exceeded.
        """
        if self._size + size > MAX_HELD:
            raise RefusedError(429, "too many or too large requests at once; wait for answers")
        self._size += size
        return size

    def release(self, size: int) -> None:
        self._size -= size


class _Lines:
    """A rate-limited log of refused requests."""

    def __init__(self, note: Callable[[str], None] | None) -> None:
        self._note = note
        self._since = -math.inf
        self._count = 0

    def add(self, refused: RefusedError, request: Request) -> None:
        what = "WebSocket" if request.websocket else request.method
        line = f"refused {what} {request.path[:100]!r}: {refused}"
        if not refused.noted:
            _LOG.debug("%s", line)
            return
        if time.monotonic() - self._since > 60:
            self._since, self._count = time.monotonic(), 0
        self._count += 1
        if self._count > MAX_LINES + 1:
            return
        if self._count > MAX_LINES:
            line = "refused more requests, which are not logged for a minute"
        _LOG.warning("%s", line)
        if self._note is not None:
            self._note(f"[cellblock] {line}")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _length(request: Request) -> int:
    """Return the length of the body. Without a length there is no body, because `http` accepts no chunks."""
    headers = dict(request.headers)
    length = headers.get(b"content-length", b"0")
    size = int(length[:20]) if length.isdigit() else 0
    if size > MAX_BODY:
        raise RefusedError(413, f"the body is larger than {MAX_BODY} bytes", noted=True)
    if request.method == "POST" and headers.get(b"content-type", b"").split(b";")[0].strip() != b"application/json":
        # Web pages cannot send this type without a preflight request.
        raise RefusedError(415, "the body must be application/json")
    return size


def _answer(status: int, data: Mapping[str, Any]) -> tuple[int, bytes]:
    encoded = data.get("result")
    if isinstance(encoded, bytes | bytearray):
        rest = json.dumps({name: value for name, value in data.items() if name != "result"}, separators=(",", ":"))
        return status, b"".join((b'{"result":', encoded, b",", rest[1:].encode("ascii")))
    return status, json.dumps(data, separators=(",", ":")).encode("ascii")
