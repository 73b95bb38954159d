"""The proxy of one session: accepts clients on a listener in the session's network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import islice

from cellblock.errors import InvalidInputError, StateError
from cellblock.walls.egress.gate import Ask, Dial, EgressLimits, Gate, Resolve, dial, resolve
from cellblock.walls.egress.rules import Denial, Rules
from cellblock.walls.egress.tunnel import BUFFER

_TURNED_AWAY = 16
_ACCEPTS = 16
_CUT_OFF = 16
"""Clients that are cut off in one turn of the loop."""
_RETRY_SECONDS = 0.2


class EgressProxy:
    """An allowlisting proxy for HTTP, CONNECT and SOCKS5, all on one listener, on the running loop.

    Args:
        listener: A listening TCP socket. It is the proxy's from now on: `close` closes it.
        rules: Who may be reached.
        on_denied: Told of every refused attempt, on the loop. It must be quick and must not raise.
        limits: What the session may take.
        resolve: Looks names up; called once for each connection, and what it returns is checked and dialled.
        dial: Connects to a checked address.
        ask: Decides about hosts that no rule names; by default they are refused.
    """

    def __init__(
        self,
        listener: socket.socket,
        rules: Rules,
        *,
        on_denied: Callable[[Denial], None],
        limits: EgressLimits | None = None,
        resolve: Resolve = resolve,
        dial: Dial = dial,
        ask: Ask | None = None,
    ) -> None:
        if listener.type != socket.SOCK_STREAM or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise InvalidInputError("The egress proxy needs a listening stream socket.")
        self._listener = listener
        self._limits = limits or EgressLimits()
        self._gate = Gate(rules, self._limits, on_denied, resolve, dial, ask)
        self._clients: set[asyncio.Task[None]] = set()
        self._scratch = memoryview(b"")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepting = False
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """How many clients are served now."""
        return len(self._clients)

    async def start(self) -> None:
        """Begin to accept clients.

        Raises:
            StateError: It was started or closed before.
        """
        if self._loop is not None or self._closed:
            raise StateError("An egress proxy can be started only once, and not after it was closed.")
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._resume()

    def withdraw_questions(self) -> None:
        """Withdraw the questions about hosts that are open: their connections are refused."""
        self._gate.withdraw()

    async def close(self) -> None:
        """Cut all clients off and wait until nothing of them is left. Can be called again."""
        if not self._closed:
            self._closed = True
            self._pause()
            if self._retry is not None:
                self._retry.cancel()
            self._listener.close()
        while self._clients:
            clients = [*islice(self._clients, _CUT_OFF)]
            for client in clients:
                client.cancel()
            await asyncio.wait(clients)
        await self._gate.close()

    def _resume(self) -> None:
        if self._loop is not None and not self._accepting and not self._closed:
            self._accepting = True
            self._loop.add_reader(self._listener, self._accept)

    def _pause(self) -> None:
        if self._loop is not None and self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):  # then the rest of the program gets its turn
            if len(self._clients) >= self._limits.connections + _TURNED_AWAY:
                self._pause()  # until one ends; the kernel keeps a bounded number waiting
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
        """Leave clients waiting for a while: this process has no descriptor, or no memory, left for another."""
        assert self._loop is not None
        self._pause()
        self._retry = self._loop.call_later(_RETRY_SECONDS, self._accept_again)

    def _accept_again(self) -> None:
        self._retry = None
        self._resume()

    def _serve(self, client: socket.socket) -> None:
        # h11 is loaded for the first client, not with the package: many sessions never make a connection.
        from cellblock.walls.egress.connection import Connection

        assert self._loop is not None
        client.setblocking(False)
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._scratch:
            self._scratch = memoryview(bytearray(BUFFER))
        connection = Connection(client, self._gate, self._limits, self._scratch, turned_away=self._is_full())
        task = self._loop.create_task(connection.serve())
        self._clients.add(task)
        task.add_done_callback(self._served)

    def _is_full(self) -> bool:
        return len(self._clients) >= self._limits.connections

    def _served(self, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        if self._retry is None:
            self._resume()
        if not task.cancelled() and (error := task.exception()) is not None:
            # A mistake of ours: it cost this client its connection, and must not pass unseen.
            context = {"message": "the egress proxy failed to serve a client", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


def environment(port: int) -> dict[str, str]:
    """Return the variables that make programs use a proxy on this port of their own loopback interface.

    Also ALL_PROXY names the proxy by HTTP, although it speaks SOCKS5: httpx reads that variable even when it has better ones,
    and refuses to start over a ``socks5h://`` in it when a package of its own is missing, or it is old.

    Args:
        port: The listener's port.
    """
    proxy = f"http://127.0.0.1:{port}"
    values = {
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "ALL_PROXY": proxy,
        # A server of the session's own is on its own loopback interface, where no proxy is needed.
        "NO_PROXY": "localhost,127.0.0.1,::1",
    }
    return values | {name.lower(): value for name, value in values.items()}
