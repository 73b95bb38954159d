"""Checks every request before routing: authentication, limits on concurrent requests, and deadlines.

Foreign DNS names, foreign web pages, missing tokens and endless bodies are refused before any route sees them.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import ipaddress
import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.routing import Match

from cellblock.errors import CellblockError
from cellblock.fronts.gateway.answers import json_bytes, send_problem
from cellblock.fronts.problems import Problem, problem_of
from cellblock.model.untrusted import MAX_VALUES, JsonCounter
from cellblock.service.store.tokens import SCOPES, Token

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from cellblock.fronts.gateway.gateway_options import GatewayOptions
    from cellblock.service.store.tokens import TokenCheck

HEALTH = "/health"
PUBLIC = ("/", HEALTH, "/docs", "/redoc", "/openapi.json")
"""Paths that say nothing about sessions, and need no token. So does what is below `STATIC`."""

STATIC = "/static/"
CONSOLE = "/console"
"""The console's page, what it loads, and the exchange of a login. All else that it asks for needs a token."""
ANYBODY = Token("", "anybody", frozenset(SCOPES))
"""The caller if no tokens are asked for."""

_NOBODY = Token("", "nobody", frozenset())
_ONCE = Token("-", "this run", frozenset(SCOPES))
_MAX_CALLERS = 10_000
_LEAST_PACE = 1024
"""Bytes of a body in a second, once it has been coming for as long as a client may be silent"""

_LOOK_SECONDS = 0.5
"""Seconds between two looks at whether the token of a request that lasts is still valid."""

LOGIN = f"{CONSOLE}/login"
"""The only public path that takes a body."""

_LOGIN_BYTES = 1024
_LOGIN_PATIENCE = 3.0
_LOGINS = 8
"""Logins that one address may be sending at once."""

_BURST = 2.0
"""Seconds for which a caller that was idle may exceed the rate by as much again."""


def is_public(path: str) -> bool:
    """Return whether a path needs no token."""
    return path in PUBLIC or path == CONSOLE or path.startswith((STATIC, f"{CONSOLE}/"))


def is_login(scope: Scope) -> bool:
    """Return whether a request is a login, the only one with a body that needs no token. A wrong method is answered later."""
    return bool(scope["path"] == LOGIN)


def address_of(scope: Scope) -> str:
    """Return the source of a request. For an IPv6 address, return the network, in which a client can choose its address."""
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return ""
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class Refused(HTTPException):
    """A request is refused, for the reason in the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.detail)
        self.problem = problem


class Guard:
    """The outermost part of the application."""

    def __init__(
        self, app: ASGIApp, options: GatewayOptions, check: TokenCheck | None, uploads: Iterable[BaseRoute] = ()
    ) -> None:
        """Guard an application.

        Args:
            app: The application.
            options: The gateway's options.
            check: Looks up tokens; None if no tokens are required.
            uploads: The application's routes whose bodies are files. All other bodies are JSON.
        """
        self._uploads = tuple(uploads)
        self._app = app
        self._options = options
        self._check = check
        self._hosts = {"localhost", socket.gethostname().lower(), *(name.lower() for name in options.hosts)}
        self._callers: dict[str, _Use] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            headers, token = Headers(scope=scope), take_token(scope)  # first, because refused requests are logged, too
            check_host(headers, self._hosts)
            check_origin(scope, headers, self._options.allowed_origins)
            upload = self._is_upload(scope)
            most, patience = self._options.max_upload if upload else self._options.max_body, self._options.patience
            if is_public(scope["path"]):
                most, patience = _LOGIN_BYTES if is_login(scope) else 0, min(patience, _LOGIN_PATIENCE)
            check_length(headers.get("content-length", ""), most)
            body = _Body(receive, most, patience, None if upload else JsonCounter())
            text = self.token_in(scope, headers, token)
            caller = scope["cellblock.caller"] = self._caller(scope, text)
            with self._counted(scope, caller):
                taken = receive if scope["type"] == "websocket" else body
                if caller in (_NOBODY, ANYBODY, _ONCE):
                    await self._app(scope, taken, send)
                else:
                    is_valid = functools.partial(self._is_valid, text)
                    await _Admitted(is_valid, send).run(self._app, scope, taken)
        except Refused as refused:
            await send_problem(scope, receive, send, refused.problem)
        except CellblockError as error:
            await send_problem(scope, receive, send, problem_of(error))

    def _is_upload(self, scope: Scope) -> bool:
        """Return whether the body of a request is a file, which may be larger than other bodies."""
        return scope.get("method") in ("POST", "PUT") and any(route.matches(scope)[0] is Match.FULL for route in self._uploads)

    def token_in(self, scope: Scope, headers: Headers, token: str) -> str:
        """Return the token of a request; empty if it has none.

        Args:
            scope: The request.
            headers: Its headers.
            token: The token in its URL.
        """
        kind, _, text = headers.get("authorization", "").partition(" ")
        if kind.lower() in ("bearer", "token"):
            return text.strip()
        # Browsers cannot set headers of a WebSocket, and Jupyter's clients also use the URL.
        return token if scope["type"] == "websocket" or scope["path"].startswith("/api") else ""

    def _is_valid(self, text: str) -> bool:
        try:
            return self._check is not None and self._check(text) is not None
        except CellblockError:  # unknown
            return False

    def _caller(self, scope: Scope, text: str) -> Token:
        """Authenticate the caller by its token.

        Raises:
            Refused: The request has no valid token; or none is required, but the caller is not on this machine.
            StoreError: The tokens cannot be read.
        """
        if is_public(scope["path"]):
            return _NOBODY
        if not self._options.auth:
            check_local(scope)
            return ANYBODY
        if same_token(text, self._options.token):
            return _ONCE
        found = self._check(text) if self._check is not None and text else None
        if found is None:
            what = "the token is not valid, or no longer valid" if text else "a token is needed: Authorization: Bearer cb_…"
            raise Refused(Problem(401, "unauthorized", f"{what} ('cellblock tokens create' makes one)"))
        return found

    @contextmanager
    def _counted(self, scope: Scope, caller: Token) -> Iterator[None]:
        """Count a request while it lasts: by its token, or by its address if it has none.

        Raises:
            Refused: The caller has too many requests, or is too fast.
        """
        at_once, key = self._options.at_once, caller.id
        if caller is _NOBODY:
            if scope["path"] == HEALTH:  # forwarded to the daemon at most once a second
                yield
                return
            key = f"{'login' if is_login(scope) else 'page'} {address_of(scope)}"
            at_once = min(_LOGINS, at_once) if is_login(scope) else at_once
        use = self._callers.get(key)
        if use is None:
            if len(self._callers) >= _MAX_CALLERS:
                self._callers = {number: use for number, use in self._callers.items() if use.running}
            use = self._callers[key] = _Use(self._options.rate * _BURST)
        check_use(use, at_once, self._options.rate, "token" if caller is not _NOBODY else "address")
        use.running += 1
        try:
            yield
        finally:
            use.running -= 1


class _Admitted:
    """A request with a token that can be revoked or expire. The request then ends, even a WebSocket or an event stream.

    The token is checked with each message in both directions, and every `_LOOK_SECONDS`.
    """

    def __init__(self, is_valid: Callable[[], bool], send: Send) -> None:
        self._is_valid = is_valid
        self._send = send
        self._limit = asyncio.timeout(None)
        self._answer = ""
        """How far the answer is: empty, ``open``, ``events`` for an open stream of events, or ``closed``"""

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        async def checked_receive() -> MutableMapping[str, Any]:
            message = await receive()
            await self._check()
            return message

        self._look_again = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        try:
            async with self._limit:
                await app(scope, checked_receive, self._checked_send)
        except TimeoutError:
            if not self._limit.expired():
                raise
            await self._end(scope, receive)
        finally:
            self._look_again.cancel()

    def _look(self) -> None:
        if self._is_valid():
            self._look_again = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        elif not self._limit.expired():
            self._limit.reschedule(0.0)

    async def _check(self) -> None:
        """Let a message pass, or never return: the request is cancelled.

        Raises:
            CancelledError: It is being cancelled already, perhaps by another task of the request.
        """
        if not self._is_valid():
            if self._limit.expired():
                raise asyncio.CancelledError
            self._limit.reschedule(0.0)
            await asyncio.Event().wait()

    async def _checked_send(self, message: MutableMapping[str, Any]) -> None:
        await self._check()
        match message["type"]:
            case "http.response.start":
                kinds = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
                self._answer = "events" if kinds and kinds[0].startswith(b"text/event-stream") else "open"
            case "websocket.accept":
                self._answer = "open"
            case "websocket.close":
                self._answer = "closed"
            case "http.response.body" if not message.get("more_body", False):
                self._answer = "closed"
        await self._send(message)

    async def _end(self, scope: Scope, receive: Receive) -> None:
        """Report why the request has ended. A partial answer stays incomplete, so that it does not seem complete."""
        problem = Problem(401, "unauthorized", "the token is no longer valid")
        if not self._answer:
            await send_problem(scope, receive, self._send, problem)
        elif self._answer != "closed" and scope["type"] == "websocket":
            await self._send({"type": "websocket.close", "code": 1008, "reason": problem.detail})
        elif self._answer == "events":
            event = b"event: problem\ndata: " + json_bytes(problem.to_dict()) + b"\n\n"
            await self._send({"type": "http.response.body", "body": event, "more_body": False})


class _Use:
    """The current use by one caller.

    Attributes:
        running: Requests in progress.
        left: Requests that may follow at once.
        at: The time of `left` (`time.monotonic`).
    """

    __slots__ = ("at", "left", "running")

    def __init__(self, left: float) -> None:
        self.running = 0
        self.left = left
        self.at = time.monotonic()


class _Body:
    """A receiver of a request's body, with limits on its size, duration and pauses."""

    __slots__ = ("_began", "_complete", "_counter", "_left", "_most", "_patience", "_receive")

    def __init__(self, receive: Receive, most: int, patience: float, counter: JsonCounter | None) -> None:
        self._began = time.monotonic()
        self._most = most
        self._receive = receive
        self._counter = counter
        self._left = most
        self._patience = patience
        self._complete = False

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._patience):
                message = await self._receive()
        except TimeoutError:
            raise Refused(Problem(408, "too_slow", f"nothing was received for {self._patience:g} seconds")) from None
        piece = message.get("body", b"")
        self._left -= len(piece)
        check_left(self._left)
        check_pace(self._most - self._left, time.monotonic() - self._began - self._patience)
        if self._counter is not None:
            check_values(self._counter.feed(piece))
        self._complete = not message.get("more_body", False)
        return message


def check_host(headers: Headers, known: set[str]) -> None:
    """Check the ``Host`` header: a foreign name that resolves to this address lets a web page talk to it (DNS rebinding).

    Raises:
        Refused: The header is neither an address nor a name of this machine. Or there are two: a proxy may have checked the
            other one.
    """
    if len(hosts := headers.getlist("host") or [""]) > 1:
        raise Refused(Problem(400, "host_refused", "a request has one Host header"))
    (host,) = hosts
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower().rstrip(".")
    if not (name in known or name.endswith(".localhost") or _is_address(name)):
        raise Refused(Problem(421, "host_refused", f"{name[:100]!r} is not a name of this server: allow it with --allow-name"))


@functools.lru_cache(maxsize=64)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin(scope: Scope, headers: Headers, allowed: tuple[str, ...]) -> None:
    """Check the origin of a request from a web page.

    Raises:
        Refused: The origin is not allowed.
    """
    if origin := headers.get("origin"):
        scheme: str = scope["scheme"]
        own = f"{scheme.replace('ws', 'http', 1)}://{headers.get('host', '')}"
        foreign = origin != own and origin not in allowed
    else:
        # Requests by a page of another origin without an Origin: pictures, scripts, forms of old browsers. A link is allowed.
        page = scope.get("method") == "GET" and scope["path"] in (*PUBLIC, CONSOLE)
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and not page
    if foreign:
        raise Refused(Problem(403, "origin_refused", "requests from other web sites are refused"))


def check_length(length: str, most: int) -> None:
    """Check the ``Content-Length``, so that a too large body is refused before it is read.

    Raises:
        Refused: The body is too large.
    """
    if length.isdecimal() and int(length) > most:
        raise Refused(Problem(413, "too_large", f"the body has {length[:20]} bytes, and this server takes {most}"))


def check_left(left: int) -> None:
    """Check the size of a received body, because not every request declares it.

    Raises:
        Refused: The body is too large.
    """
    if left < 0:
        raise Refused(Problem(413, "too_large", "the body is larger than this server takes"))


def check_pace(received: int, seconds: float) -> None:
    """Check that a body arrives fast enough, because each incomplete body occupies a connection and memory.

    Args:
        received: The bytes received so far.
        seconds: The seconds since the start, minus the grace period.

    Raises:
        Refused: The body is too slow.
    """
    if received < seconds * _LEAST_PACE:
        raise Refused(Problem(408, "too_slow", f"the body arrives more slowly than {_LEAST_PACE:,} bytes per second"))


def check_values(count: int) -> None:
    """Check that a body has no more values than can be parsed in one iteration of the event loop.

    Raises:
        Refused: The body has more values.
    """
    if count > MAX_VALUES:
        raise Refused(
            Problem(
                413, "too_large", f"the body has more than {MAX_VALUES:,} values (long numbers and escapes count as several)"
            )
        )


def check_local(scope: Scope) -> None:
    """Check that both ends of a connection are on this machine.

    Raises:
        Refused: They are not.
    """
    for end in (scope.get("server"), scope.get("client")):
        try:
            local = end is not None and ipaddress.ip_address(end[0]).is_loopback
        except ValueError:
            local = False
        if not local:
            raise Refused(Problem(403, "forbidden", "without tokens, only programs on the same machine are served"))


def same_token(given: str, expected: str) -> bool:
    """Compare tokens in constant time; an empty token never matches."""
    return bool(expected) and hmac.compare_digest(given.encode(), expected.encode())


def check_use(use: _Use, at_once: int, rate: float, who: str = "token") -> None:
    """Count one request against a caller's limits.

    Raises:
        Refused: The caller has too many concurrent requests, or is too fast.
    """
    if use.running >= at_once:
        raise Refused(Problem(429, "too_many_at_once", f"this {who} has {at_once} requests in progress already", 1.0))
    now = time.monotonic()
    use.left = min(use.left + (now - use.at) * rate, rate * _BURST)
    use.at = now
    if use.left < 1:
        wait = (1 - use.left) / rate
        raise Refused(Problem(429, "too_many_requests", f"this {who} may make {rate:g} requests per second", math.ceil(wait)))
    use.left -= 1


def take_token(scope: Scope) -> str:
    """Remove the token from a request's URL and return it, because servers log URLs."""
    query: bytes = scope["query_string"]
    if b"token=" not in query:
        return ""
    parts = query.split(b"&")
    scope["query_string"] = b"&".join(part for part in parts if not part.startswith(b"token="))
    found = next((part for part in parts if part.startswith(b"token=")), b"")
    return unquote_to_bytes(found.removeprefix(b"token=")).decode("latin-1")
