"""The proxy of one session, which accepts clients on a listener in the session's network."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from cellblock.common.telemetry import MakeStep, untraced
from cellblock.errors import InvalidInputError, StateError
from cellblock.walls.egress.gate import Ask, Dial, EgressLimits, Gate, Hold, Resolve, dial, resolve
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.rules import Denial
from cellblock.walls.egress.tunnel import BUFFER

if TYPE_CHECKING:
    from cellblock.walls.egress.judge import RequestJudge
    from cellblock.walls.keys.session_keys import SessionKeys

_TURNED_AWAY = 16
_ACCEPTS = 16
_CUT_OFF = 16
"""Clients that are disconnected per turn of the loop."""
_RETRY_SECONDS = 0.2


class EgressProxy:
    """An allowlisting proxy for HTTP, CONNECT and SOCKS5, all on one listener, on the running loop.

    Args:
        listener: A listening TCP socket, owned by the proxy: `close` closes it.
        network: The rules.
        on_denied: Called with every refused attempt, on the loop. It must be quick and must not raise.
        limits: Limits on the session's use of the proxy.
        resolve: Resolves names; called once for each connection, and its results are checked and used.
        dial: Connects to a checked address.
        ask: Decides about hosts that no rule names; by default they are refused.
        keys: Serves the connections to hosts that receive secrets.
        judge: Decides about requests; given with `keys`.
    """

    def __init__(
        self,
        listener: socket.socket,
        network: LiveNetwork,
        *,
        on_denied: Callable[[Denial], None],
        limits: EgressLimits | None = None,
        resolve: Resolve = resolve,
        dial: Dial = dial,
        ask: Ask | None = None,
        hold: Hold | None = None,
        step: MakeStep = untraced,
        keys: SessionKeys | None = None,
        judge: RequestJudge | None = None,
    ) -> None:
        if listener.type != socket.SOCK_STREAM or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise InvalidInputError("The egress proxy needs a listening stream socket.")
        self._listener = listener
        self._limits = limits or EgressLimits()
        self._gate = Gate(network, self._limits, on_denied, resolve, dial, ask, hold, step)
        self._keys = keys
        self._judge = judge
        self._clients: set[asyncio.Task[None]] = set()
        self._scratch = memoryview(b"")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepting = False
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start to accept clients.

        Raises:
            StateError: It was started or closed before.
        """
        if self._loop is not None or self._closed:
            raise StateError("An egress proxy can be started only once, and not after it was closed.")
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._resume()

    def withdraw_questions(self) -> None:
        """Withdraw open questions about hosts and requests, which are refused."""
        self._gate.withdraw()
        if self._judge is not None:
            self._judge.withdraw()

    async def close(self) -> None:
        """Disconnect all clients and wait for the end of their tasks. Idempotent."""
        if not self._closed:
            self._closed = True
            self._pause()
            if self._retry is not None:
                self._retry.cancel()
            self._listener.close()
        while self._clients:
            await self._cut_off()
        await self._gate.close()

    async def _cut_off(self) -> None:
        """Disconnect the current clients."""
        found = [*self._clients]
        for start in range(0, len(found), _CUT_OFF):
            clients = found[start : start + _CUT_OFF]
            for client in clients:
                client.cancel()
            await asyncio.wait(clients)

    def _resume(self) -> None:
        if self._loop is not None and not self._accepting and not self._closed:
            self._accepting = True
            self._loop.add_reader(self._listener, self._accept)

    def _pause(self) -> None:
        if self._loop is not None and self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):  # so that the rest of the program gets its turn
            if len(self._clients) >= self._limits.connections + _TURNED_AWAY:
                self._pause()  # until one ends; the kernel queues a bounded number
                return
            try:
                client, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._accept_later()
                return
            self._serve(client)

    def _accept_later(self) -> None:
        """Pause accepting, because this process has no descriptor or memory for another client."""
        assert self._loop is not None
        self._pause()
        self._retry = self._loop.call_later(_RETRY_SECONDS, self._accept_again)

    def _accept_again(self) -> None:
        self._retry = None
        self._resume()

    def _serve(self, client: socket.socket) -> None:
        # h11 is loaded for the first client, not with the package: many sessions never make a connection.
        from cellblock.walls.proxy.proxy_connection import Connection

        assert self._loop is not None
        client.setblocking(False)
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._scratch:
            self._scratch = memoryview(bytearray(BUFFER))
        connection = Connection(
            client,
            self._gate,
            self._limits,
            self._scratch,
            turned_away=self._is_full(),
            keys=self._keys,
            judge=self._judge,
        )
        task = self._loop.create_task(connection.serve())
        self._clients.add(task)
        task.add_done_callback(functools.partial(self._served, client))

    def _is_full(self) -> bool:
        return len(self._clients) >= self._limits.connections

    def _served(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        client.close()  # a task that was cancelled before it began has not
        self._clients.discard(task)
        if self._retry is None:
            self._resume()
        if not task.cancelled() and (error := task.exception()) is not None:
            # Our bug: it cost this client its connection, and must be visible.
            context = {"message": "the egress proxy failed to serve a client", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


def environment(port: int) -> dict[str, str]:
    """Return the variables that make programs use a proxy on this port of their loopback interface.

    ALL_PROXY also names the proxy by HTTP, although it supports SOCKS5. httpx reads that variable even if it has better ones.
    With ``socks5h://`` in it, an old httpx, or one without an optional package, fails to start.
    """
    proxy = f"http://127.0.0.1:{port}"
    values = {
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "ALL_PROXY": proxy,
        # The session's own servers are on its loopback interface, where no proxy is needed.
        "NO_PROXY": "localhost,127.0.0.1,::1",
    }
    return values | {name.lower(): value for name, value in values.items()}
