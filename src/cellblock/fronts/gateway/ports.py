"""Pages of servers in sessions, for the user's browser: each port of a session has an origin of its own.

The origin is ``http://p8501-ID.localhost:GATEWAY``, with a random ID that no later session gets. A one-time ticket in the URL
becomes a cookie of this host, without which nothing is forwarded. The page is shown in a frame at another origin of the same
site, which keeps it from navigating the user's tab. A gateway for other machines has a domain instead of ``localhost``.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Body, Request, Response
from pydantic import BaseModel, Field

from cellblock.errors import CellblockError, InvalidInputError, NotFoundError, UnsupportedError, shown
from cellblock.fronts.gateway import forwarding
from cellblock.fronts.gateway.access import link_of
from cellblock.fronts.gateway.answers import send_problem
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.guard import Refused, same_token
from cellblock.fronts.gateway.models import Strict
from cellblock.fronts.gateway.routes import add
from cellblock.fronts.gateway.session_routes import Run
from cellblock.fronts.problems import Problem, problem_of
from cellblock.operations.programs import Ports
from cellblock.operations.sessions import Status

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

router = APIRouter(tags=["Programs"], route_class=CheckedRoute)
add(router, Ports)

COOKIE = "cellblock-port"
TICKET = "cellblock-ticket"
_LABEL = r"(p[0-9]+-[0-9a-f]{16})"
_DOMAIN = re.compile(r"(https?)://((?:[a-z0-9-]{1,63}\.)+[a-z0-9-]{1,63})(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
VALID = 120.0
"""Seconds for which a ticket can be used, by default."""
_AT_ONCE = 64
"""Requests to one page at a time."""
_MOST = 1000
"""Pages of one gateway. The oldest is closed for another one."""
_FRAME = (
    '<!doctype html><meta charset="utf-8"><title>{title}</title>'
    "<style>html,body,iframe{{margin:0;border:0;width:100%;height:100%;display:block}}</style>"
    '<iframe sandbox="allow-scripts allow-same-origin allow-forms allow-modals allow-downloads" src="{source}"></iframe>'
)
_INNER = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob: {socket}; "
    "form-action 'self'; frame-ancestors 'self' {frame}"
)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of pages.

    Attributes:
        scheme: ``http`` or ``https``.
        domain: The domain below which they are.
        port: ``:`` and the port in URLs; empty for the default, or for the gateway's own port.
        frame: What comes before the name of a page in the name of its frame.
    """

    scheme: str = "http"
    domain: str = "localhost"
    port: str = ""
    frame: str = "frame."

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the names below a public domain, such as ``https://ports.example.org``; empty for ``localhost``.

        Raises:
            InvalidInputError: The URL is invalid.
        """
        if not url:
            return cls()
        if (match := _DOMAIN.fullmatch(url)) is None:
            raise InvalidInputError(
                f"ports_domain (--ports-domain) must be like 'https://ports.example.org', without a path, not {shown(url)}"
            )
        # One label, for certificates of *.DOMAIN.
        return cls(match[1].lower(), match[2].lower(), match[3] or "", "frame-")

    @property
    def public(self) -> bool:
        """Whether they are for browsers on other machines."""
        return self.domain != "localhost"

    @property
    def cookie(self) -> str:
        """The name of the cookie. With TLS, browsers let no other page of the domain set it."""
        return f"__Host-{COOKIE}" if self.scheme == "https" else COOKIE

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of hosts: what comes before the page's name, and this name."""
        before = "(frame-)?" if self.public else r"(.+\.)?"
        return re.compile(rf"{before}{_LABEL}\.{re.escape(self.domain)}(?::[0-9]+)?", re.IGNORECASE)


class Page:
    """One port of one session, opened for the user.

    Attributes:
        session: The session's id.
        port: The port.
        bare: Whether the page is shown without a frame and without a content security policy of cellblock.
        host: The first label of its host's name.
        running: The number of requests in progress.
    """

    def __init__(self, session: str, port: int, *, bare: bool) -> None:
        self.session = session
        self.port = port
        self.bare = bare
        self.host = f"p{port}-{secrets.token_hex(8)}"
        self.running = 0
        self._tickets: dict[str, tuple[float, Callable[[], bool]]] = {}
        self._cookies: dict[str, Callable[[], bool]] = {}

    def ticket(self, is_valid: Callable[[], bool], seconds: float = VALID) -> str:
        """Return a new ticket, which counts for some seconds, and as long as its caller's token is valid."""
        now = time.monotonic()
        self._tickets = {text: one for text, one in self._tickets.items() if one[0] > now}
        self._cookies = {text: check for text, check in self._cookies.items() if check()}
        made = secrets.token_urlsafe(24)
        self._tickets[made] = (now + seconds, is_valid)
        return made

    def enter(self, ticket: str) -> str | None:
        """Exchange a ticket for a cookie, once."""
        until, is_valid = self._tickets.pop(ticket, (0.0, bool))
        if until <= time.monotonic() or not is_valid():
            return None
        made = secrets.token_urlsafe(24)
        self._cookies[made] = is_valid
        return made

    def admits(self, cookies: list[str]) -> bool:
        """Return whether a browser has entered."""
        return any(hmac.compare_digest(known, one) and check() for known, check in self._cookies.items() for one in cookies)


class PageHosts:
    """The outermost application: answers requests for the hosts of pages, and passes all others on."""

    def __init__(
        self,
        app: ASGIApp,
        connect: forwarding.Connect,
        check: Callable[[str], object] | None = None,
        token: str = "",
        names: Names | None = None,
    ) -> None:
        """Begin without pages.

        Args:
            app: The application for all other hosts.
            connect: Connects to servers in sessions.
            check: Looks up tokens; None if none are required.
            token: The token of this run.
            names: The names of pages; None for names of this machine.
        """
        self.names = names or Names()
        self._host = self.names.pattern
        self._app = app
        self._connect = connect
        self._check = check
        self._token = token
        self._pages: dict[str, Page] = {}

    def open(self, session: str, port: int, at: int, token: str = "", *, bare: bool = False, seconds: float = VALID) -> str:
        """Open a page, or open it again. Return its URL, with a new ticket.

        Args:
            session: The session.
            port: The server's port.
            at: The port of the gateway.
            token: The caller's token, with which the page ends.
            bare: As for `Page`.
            seconds: How long the ticket can be used.
        """
        same = (one for one in self._pages.values() if (one.session, one.port, one.bare) == (session, port, bare))
        page = next(same, None)
        if page is None:
            page = Page(session, port, bare=bare)
            while len(self._pages) >= _MOST:
                del self._pages[next(iter(self._pages))]
            self._pages[page.host] = page
        ticket = page.ticket(functools.partial(self._is_valid, token), seconds)
        names = self.names
        host = f"{'' if bare else names.frame}{page.host}.{names.domain}{names.port if names.public else f':{at}'}"
        return f"{names.scheme}://{host}/?{TICKET}={ticket}"

    def _is_valid(self, token: str) -> bool:
        if self._check is None or same_token(token, self._token):
            return True
        try:
            return self._check(token) is not None
        except CellblockError:
            return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        found = [self._host.fullmatch(one) for one in hosts]
        if not any(found):
            await self._app(scope, receive, send)
            return
        page = self._pages.get(found[0][2].lower()) if len(found) == 1 and found[0] is not None else None
        async with failures_answered(scope, receive, send):
            if page is None or found[0] is None:
                raise NotFoundError("this page is closed: open the port again")
            framing = (found[0][1] or "").lower()
            if framing not in ("", self.names.frame):
                raise Refused(Problem(421, "host_refused", "this is not the host of a page"))
            if page.running >= _AT_ONCE:
                raise Refused(Problem(429, "too_many_at_once", f"this page has {_AT_ONCE} requests in progress", 1.0))
            page.running += 1
            try:
                visit = _Visit(self._connect, page, self.names, hosts[0], scope, receive, send)
                await visit.serve(framing=bool(framing))
            finally:
                page.running -= 1


@contextlib.asynccontextmanager
async def failures_answered(scope: Scope, receive: Receive, send: Send) -> AsyncGenerator[None, None]:
    """Answer a request for a page with the problem, if this block refuses or cannot forward it."""
    try:
        yield
    except Refused as refused:
        await send_problem(scope, receive, send, refused.problem)
    except (forwarding.UnreachableError, NotFoundError) as error:
        await send_problem(scope, receive, send, Problem(502, "no_answer", str(error)))
    except CellblockError as error:
        await send_problem(scope, receive, send, problem_of(error))


class _Visit:
    """One request for a page."""

    def __init__(
        self, connect: forwarding.Connect, page: Page, names: Names, host: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._connect = connect
        self._page = page
        self._names = names
        self._scope = scope
        self._receive = receive
        self._send = send
        self._host = host.lower()
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]

    async def serve(self, *, framing: bool) -> None:
        """Answer the request.

        Raises:
            Refused: It has no valid cookie or ticket, or comes from another origin.
        """
        if framing:
            await self._frame()
            return
        origin = f"{self._names.scheme}://{self._host}"
        socket = self._scope["type"] == "websocket"
        self._check_origin(origin, needed=socket)
        if not socket and (ticket := self._ticket()) is not None:
            await self._enter(*ticket)
            return
        if not self._page.admits(self._cookies()):
            raise Refused(Problem(403, "ticket_needed", "open the port again, with 'cellblock open'"))
        headers = forwarding.own_headers(self._headers, self._page.port, origin, self._names.cookie.encode())
        async with self._connect(self._page.session, self._page.port) as connection:
            if socket:
                cookies, port = self._cookies(), self._page.port
                await forwarding.forward_websocket(
                    connection, self._scope, self._receive, self._send, headers, port, lambda: self._page.admits(cookies)
                )
            else:
                await forwarding.forward(connection, self._scope, self._receive, self._send, headers, self._answered)

    def _check_origin(self, own: str, *, needed: bool) -> None:
        """Check that no other page makes the request.

        Raises:
            Refused: One does.
        """
        given = [value.decode("latin-1") for name, value in self._headers if name == b"origin"]
        if given not in ([own], []) or (needed and not given) or self._is_part_of_another_page():
            raise Refused(Problem(403, "origin_refused", "requests from other pages are refused"))

    def _is_part_of_another_page(self) -> bool:
        """Return whether another page of the same domain, to which the browser gives our cookie, loads this as a part."""
        said = {name: value for name, value in self._headers if name in (b"sec-fetch-site", b"sec-fetch-mode")}
        foreign = said.get(b"sec-fetch-site") in (b"same-site", b"cross-site")
        return foreign and said.get(b"sec-fetch-mode") != b"navigate"

    def _answered(self, headers: forwarding.Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer, with the policy that keeps the page in its frame and from other servers."""
        passed = forwarding.passed_headers(headers, self._page.port, self._names.cookie.encode())
        if self._page.bare:
            policy = "frame-ancestors 'self'"
        else:
            passed = [(name, value) for name, value in passed if name != b"x-frame-options"]
            scheme = self._names.scheme
            socket = f"{scheme.replace('http', 'ws', 1)}://{self._host}"
            policy = _INNER.format(socket=socket, frame=f"{scheme}://{self._names.frame}{self._host}")
        return [*passed, (b"content-security-policy", policy.encode()), (b"referrer-policy", b"same-origin")]

    def _ticket(self) -> tuple[str, str] | None:
        """Return the ticket in the URL, and the URL's path without it; None if missing."""
        query = self._scope["query_string"].decode("latin-1")
        if TICKET not in query:
            return None
        fields = parse_qsl(query, keep_blank_values=True)
        rest = urlencode([one for one in fields if one[0] != TICKET])
        tickets = [value for name, value in fields if name == TICKET]
        path = "/" + forwarding.path_of(self._scope).decode("latin-1").lstrip("/\\")  # "//host" is another host
        return None if not tickets else (tickets[0], path + (f"?{rest}" if rest else ""))

    async def _enter(self, ticket: str, path: str) -> None:
        cookie = self._page.enter(ticket)
        if cookie is None and not self._page.admits(self._cookies()):  # admitted: a tab is loaded again
            raise Refused(Problem(403, "ticket_needed", "this ticket is used or too old: open the port again"))
        headers = {"Location": path, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        if cookie is not None:
            secure = "; Secure" if self._names.scheme == "https" else ""
            headers["Set-Cookie"] = f"{self._names.cookie}={cookie}; Path=/; HttpOnly; SameSite=Lax{secure}"
        await Response(status_code=303, headers=headers)(self._scope, self._receive, self._send)

    def _cookies(self) -> list[str]:
        """Return the values of our cookie. Code of the page can set more of them."""
        found = []
        for name, value in self._headers:
            if name == b"cookie":
                parts = (one.partition("=") for one in value.decode("latin-1").split(";"))
                found += [text.strip() for key, _, text in parts if key.strip() == self._names.cookie and text.isascii()]
        return found[:8]

    async def _frame(self) -> None:
        """Show the frame around the page. It passes the ticket on, and says nothing else."""
        inner = f"{self._names.scheme}://{self._host.removeprefix(self._names.frame)}"
        query = re.sub(r"[^A-Za-z0-9_=&-]", "", self._scope["query_string"].decode("latin-1"))
        headers = {
            "Content-Security-Policy": f"default-src 'none'; frame-src {inner}; style-src 'unsafe-inline'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-DNS-Prefetch-Control": "off",
        }
        if self._scope["type"] == "websocket" or self._scope["path"] != "/" or self._page.bare:
            raise Refused(Problem(404, "not_found", "there is nothing here"))
        source = f"{inner}/" + (f"?{query}" if query else "")
        text = _FRAME.format(title=f"Port {self._page.port}", source=source.replace("&", "&amp;"))
        await Response(text, media_type="text/html", headers=headers)(self._scope, self._receive, self._send)


class OpenPortRequest(Strict):
    """A port to open in the user's browser."""

    bare: bool = Field(default=False, description="Show the page without a frame, and let it load from other servers.")


class OpenPortResponse(BaseModel):
    """Where the page is."""

    url: str = Field(description="For one browser, within two minutes.")


@router.post("/sessions/{session}/ports/{port}", response_model=OpenPortResponse, summary="Open a port in the browser")
async def open_port(
    request: Request, session: str, port: int, caller: Run, wanted: Annotated[OpenPortRequest | None, Body()] = None
) -> OpenPortResponse:
    """Return a URL at which a browser shows the page of a server in a session, on this machine or below --ports-domain."""
    hosts: PageHosts = request.app.state.pages
    if request.url.scheme != "http" and not hosts.names.public:
        raise UnsupportedError(
            "with TLS, ports open below a domain of their own: start the gateway with --ports-domain, or run 'cellblock open' "
            "on its machine"
        )
    link = link_of(request)
    record: dict[str, Any] = await link.call(Status(session))
    check_listens(port, await link.call(Ports(record["kernel_id"])), f"session {session!r}")
    bare = wanted is not None and wanted.bare
    token = request.headers.get("authorization", "").partition(" ")[2].strip()
    return OpenPortResponse(url=hosts.open(record["kernel_id"], port, request.url.port or 80, token, bare=bare))


def check_listens(port: int, ports: list[int], name: str) -> None:
    """Check that a server listens.

    Raises:
        NotFoundError: It does not.
    """
    if port not in ports:
        listed = ", ".join(map(str, ports))
        there = f"its servers listen at {listed}" if ports else "start a server first, at 127.0.0.1 or 0.0.0.0"
        raise NotFoundError(f"nothing listens at port {port} of {name}: {there}")
