"""Servers of the sandbox at ports of this machine, where the host of E2B's ``get_host`` is in debug mode.

Programs are forwarded. A browser is redirected to an origin of the page's own, because all ports of ``localhost`` share
cookies.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING

from starlette.responses import Response

from cellblock.fronts.gateway import forwarding
from cellblock.fronts.gateway.guard import Refused
from cellblock.fronts.gateway.ports import COOKIE, PageHosts, failures_answered
from cellblock.fronts.problems import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from cellblock.fronts.e2b.contexts import Contexts
    from cellblock.service.daemon.link import SessionLink

_NAMES = ("localhost", "127.0.0.1")


class Published:
    """The outermost application: answers requests at published ports, and passes all others on."""

    def __init__(self, app: ASGIApp, ports: Collection[int], link: SessionLink, contexts: Contexts) -> None:
        """Begin without pages.

        Args:
            app: The application at all other ports.
            ports: The published ports.
            link: The link to the sessions.
            contexts: The sessions whose servers are shown.
        """
        self._app = app
        self._ports = frozenset(ports)
        self._contexts = contexts
        self._connect = functools.partial(forwarding.LinkedConnection, link)
        self._pages = PageHosts(self._serve, self._connect)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        published = scope["type"] in ("http", "websocket") and scope["server"][1] in self._ports
        await (self._pages if published else self._app)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        port: int = scope["server"][1]
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        async with failures_answered(scope, receive, send):
            origin = _own_origin(headers, port)
            opens = _opens_page(scope, headers)
            session = await self._contexts.listening(port)
            if opens:
                to = {"Location": self._pages.open(session, port, port), "Cache-Control": "no-store"}
                await Response(status_code=303, headers=to)(scope, receive, send)
            else:
                await self._forward(session, port, origin, scope, receive, send)

    async def _forward(self, session: str, port: int, origin: str, scope: Scope, receive: Receive, send: Send) -> None:
        cookie = COOKIE.encode()

        def answered(headers: forwarding.Headers) -> list[tuple[bytes, bytes]]:
            # A browser that does not look like one runs no script of the page.
            return [*forwarding.passed_headers(headers, port, cookie), (b"content-security-policy", b"sandbox")]

        headers = forwarding.own_headers(scope["headers"], port, origin, cookie)
        async with self._connect(session, port) as connection:
            if scope["type"] == "websocket":
                await forwarding.forward_websocket(connection, scope, receive, send, headers, port, _always)
            else:
                await forwarding.forward(connection, scope, receive, send, headers, answered)


def _own_origin(headers: dict[bytes, list[bytes]], port: int) -> str:
    """Return the origin of a request's host.

    Raises:
        Refused: The host is not this machine's, or the request comes from a page of another origin.
    """
    hosts = [value.decode("latin-1").lower() for value in headers.get(b"host", ())]
    if len(hosts) != 1 or hosts[0] not in {f"{name}:{port}" for name in _NAMES} | ({*_NAMES} if port == 80 else set()):
        raise Refused(Problem(421, "host_refused", f"this server is at localhost:{port}"))
    origin = f"http://{hosts[0]}"
    if headers.get(b"origin", [origin.encode()]) != [origin.encode()]:
        raise Refused(Problem(403, "origin_refused", "requests from other pages are refused"))
    return origin


def _opens_page(scope: Scope, headers: dict[bytes, list[bytes]]) -> bool:
    """Return whether a browser opens a page, and no program makes the request.

    Raises:
        Refused: It is another request of a browser: no page has this origin.
    """
    fetched = b"sec-fetch-site" in headers or b"sec-fetch-dest" in headers  # Node sends the mode alone
    if not fetched and not any(value.startswith(b"Mozilla/") for value in headers.get(b"user-agent", ())):
        return False
    navigates = headers.get(b"sec-fetch-mode") == [b"navigate"] and headers.get(b"sec-fetch-dest") == [b"document"]
    if scope["type"] != "http" or scope["method"] != "GET" or (fetched and not navigates):
        raise Refused(Problem(403, "origin_refused", "requests from other pages are refused"))
    return True


def _always() -> bool:
    return True
