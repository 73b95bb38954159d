"""`ToolServer`: MCP tools over HTTP for programs outside of any session."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from cellblock.common.addresses import bracketed
from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError, StateError
from cellblock.model.decisions import CallKind
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.rules import Rules
from cellblock.tools.mcp.changes import GONE, Check, ToolFacts
from cellblock.tools.mcp.params import ServerParams, parse_params
from cellblock.tools.mcp.place import made_absolute
from cellblock.tools.serving.approval_channel import ApprovalChannel
from cellblock.tools.serving.tool_app import (
    LOOPBACK,
    Guard,
    RefusedError,
    RunRequest,
    denied,
    http_app,
    perform,
)

if TYPE_CHECKING:
    from cellblock.tools.mcp.servers import Servers
    from cellblock.tools.serving.listen import HttpServer
    from cellblock.tools.serving.websocket import WebSocket

Lookup = Callable[[str], ServerParams]
"""Returns a server's parameters by its name, or raises `InvalidInputError`: `ServerRegistry.get`."""

_LOG = logging.getLogger("cellblock.tools")
MIN_TOKEN = 16
"""Minimum characters of a token: attackers can try any number of them."""

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class ToolServer:
    """A server that runs MCP servers and calls their tools for HTTP clients, with approval if required.

    MCP servers start with their first call, and stay until `stop` or a reset. Endpoints: ``PUT /reset`` stops all servers,
    ``POST /run`` calls a tool, ``POST /approve`` only requests approval, ``GET /status`` shows that it runs, ``WS
    /approval`` is for an `ApprovalClient`. See docs/approvals.md.

    **Anything that can reach ``POST /run`` can start programs**: it accepts a server's parameters, which include a command
    line. Run untrusted code in a session: its tool port accepts no parameters.

    Example::

        async with ToolServer(approval_required=True) as server:
            async with ApprovalClient(callback=on_approval_request):
                ...

    Attributes:
        host: The hostname on which it listens.
        port: The port on which it listens.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8900,
        approval_required: bool = False,
        approval_timeout: float | None = 60,
        connect_timeout: float = 30,
        log_to_stderr: bool = False,
        log_level: str = "INFO",
        *,
        token: str | None = None,
        rules: Rules | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        """Set up.

        Args:
            host: Hostname to listen on.
            port: Port to listen on; 0 for any free one, which is in `port` after `start`.
            approval_required: Whether tool calls require approval.
            approval_timeout: Seconds that an approval request waits, or None for no limit.
            connect_timeout: Limit in seconds for the start of an MCP server.
            log_to_stderr: Whether to log to stderr instead of stdout.
            log_level: DEBUG, INFO, WARNING, ERROR or CRITICAL.
            token: Bearer token that every request must have. Required if other machines can reach `host`.
            rules: Rules that decide first. `approval_required` replaces their `default`.
            lookup: Returns the parameters of servers that a request only names; by default, from the registry of
                `generate_mcp_sources`.

        Raises:
            InvalidInputError: An argument is invalid.
        """
        if log_level not in _LEVELS:
            raise InvalidInputError(f"log_level must be one of {', '.join(_LEVELS)}, not {log_level!r}.")
        if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
            raise InvalidInputError(
                f"token must be at least {MIN_TOKEN} characters of printable ASCII without spaces; "
                "secrets.token_urlsafe() makes one."
            )
        self.host = host
        self.port = port
        self._connect_timeout = connect_timeout
        self._log = (log_to_stderr, log_level)
        self._token = token
        self._lookup = lookup or _registered
        self._given: dict[str, ServerParams] = {}
        self._channel = ApprovalChannel(approval_required, approval_timeout)
        decided = Rules(rules.rules if rules else (), "ask" if approval_required else "allow")
        self._broker = Broker(decided, self._channel.offer, approval_timeout, session="tool server")
        self._servers: Servers | None = None
        self._listening: HttpServer | None = None
        self._handler: logging.Handler | None = None
        self._level_before: int | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the HTTP server.

        Raises:
            StateError: It is already running.
            InvalidInputError: Other machines can reach `host`, and there is no token.
            OSError: The port is not available.
            UnsupportedError: The extra mcp is not installed.
        """
        require_extra("mcp", "tool servers")
        from cellblock.tools.serving.listen import HttpServer

        if self._listening is not None:
            raise StateError("The tool server is already running.")
        addresses = await resolved(self.host)
        if self._token is None and not all(ipaddress.ip_address(address).is_loopback for address in addresses):
            raise InvalidInputError(
                f"Other machines can reach {self.host!r}, and every client of this server can start programs. "
                "Give it a token, or bind it to 'localhost'."
            )
        sockets = bind(addresses, self.port)
        self.port = sockets[0].getsockname()[1]
        guard = self._guard(addresses)
        routes = {
            ("POST", "/run"): self._run,
            ("POST", "/approve"): self._approve,
            ("PUT", "/reset"): self._reset,
            ("GET", "/status"): _status,
        }
        app = http_app(guard, routes)
        self._listening = HttpServer(app, sockets, self._approvals(guard))
        self._servers = self._make_servers()
        self._log_on()
        await self._listening.start()
        _LOG.info("tool server listens on %s:%s", self.host, self.port)

    async def stop(self) -> None:
        """Stop the HTTP server, and all MCP servers."""
        if self._listening is None or self._servers is None:
            return
        listening, servers = self._listening, self._servers
        self._broker.close("the tool server has stopped")
        await self._channel.disconnect()
        await listening.stop()
        await servers.close()
        self._listening = self._servers = None
        if self._handler is not None:
            _LOG.removeHandler(self._handler)
        if self._level_before is not None:
            _LOG.setLevel(self._level_before)
            self._level_before = None

    async def join(self) -> None:
        """Wait for the HTTP server to stop."""
        if self._listening is not None:
            await self._listening.join()

    def _make_servers(self) -> Servers:
        from cellblock.tools.mcp.servers import Servers

        return Servers(self._params, connect_timeout=self._connect_timeout)

    def _params(self, name: str) -> ServerParams:
        """Return a server's parameters, from the request or the registry."""
        if name in self._given:
            return self._given[name]
        return self._lookup(name)

    def _guard(self, addresses: list[str]) -> Guard:
        # If it listens on all addresses, the required token keeps web pages away as well.
        any_host = any(ipaddress.ip_address(address).is_unspecified for address in addresses)
        hosts = None if any_host else frozenset((*LOOPBACK, self.host.lower(), *map(bracketed, addresses)))
        return Guard(hosts, self._token)

    def _approvals(self, guard: Guard) -> Callable[[WebSocket], Awaitable[None]]:
        async def serve(websocket: WebSocket) -> None:
            try:
                guard.check(websocket.headers)
                if websocket.path != "/approval":
                    raise RefusedError(404, f"{websocket.path[:100]!r} does not exist here")
                await self._channel.connect(websocket)
            except RefusedError as refused:
                _LOG.warning("refused an approval client: %s", refused)
                await websocket.reject(refused.status, str(refused))

        return serve

    async def _run(self, body: bytes) -> Mapping[str, Any]:
        request = RunRequest.parse(body)
        try:
            if request.params is None:
                self._params(request.server)
            else:
                params = made_absolute(parse_params(request.server, request.params), os.getcwd())
                if self._given.setdefault(request.server, params) != params:
                    # It is unknown which of the two was meant, and a running server must not be replaced while others use
                    # it.
                    raise InvalidInputError(f"MCP server {request.server!r} has other parameters; reset the tool server first")
        except InvalidInputError as error:
            raise RefusedError(400, str(error)) from error
        assert self._servers is not None
        _LOG.debug("%s.%s is called", request.server, request.tool)
        call = partial(self._servers.call, request.server, check=_check_listed(request))
        return await perform(self._broker, call, request)

    async def _approve(self, body: bytes) -> Mapping[str, Any]:
        """Decide an action that happens elsewhere, such as a shell command of a kernel."""
        request = RunRequest.parse(body)
        if request.params is not None:
            raise RefusedError(400, "a request for approval only must have no server_params")
        kind: CallKind = "shell" if request.server == "shell" else "tool"
        try:
            decision = await self._broker.decide(kind, request.server, request.tool, request.arguments, None, "")
        except InvalidInputError as error:
            raise RefusedError(400, str(error)) from error
        name = f"{request.server}.{request.tool}"
        return {"approved": True} if decision.allowed else {"approved": False, **denied(name, decision)}

    async def _reset(self, body: bytes) -> Mapping[str, Any]:
        assert self._servers is not None
        self._given.clear()
        self._broker.forget()
        await self._servers.reset()
        return {"reset": "success"}

    def _log_on(self) -> None:
        to_stderr, level = self._log
        self._handler = logging.StreamHandler(sys.stderr if to_stderr else sys.stdout)
        self._handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        self._handler.setLevel(level)
        _LOG.addHandler(self._handler)
        if _LOG.level == logging.NOTSET or _LOG.level > self._handler.level:
            self._level_before = _LOG.level
            _LOG.setLevel(level)


async def _status(body: bytes) -> Mapping[str, Any]:
    return {"status": "ok"}


def _registered(name: str) -> ServerParams:
    from cellblock.tools.registry.servers import ServerRegistry

    try:
        return ServerRegistry().get(name)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}, or send its server_params") from error


def _check_listed(request: RunRequest) -> Check:
    """Return a check that refuses calls of tools that the server does not have."""

    def check(now: ToolFacts) -> None:
        if now == GONE:
            raise RefusedError(404, f"MCP server {request.server!r} has no tool {request.tool!r}")

    return check


async def resolved(host: str) -> list[str]:
    """Return the addresses of a host, as text."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def bind(addresses: list[str], port: int) -> list[socket.socket]:
    """Listen on every address of a name, on one port, because a client may try any of them first."""
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                listener = socket.create_server((address, port), family=family, backlog=512)
            except OSError as error:
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and address != addresses[-1]:
                    continue  # a machine with a name for IPv6, but without IPv6
                raise
            sockets.append(listener)
            port = listener.getsockname()[1]
    except BaseException:
        for listener in sockets:
            listener.close()
        raise
    return sockets
