"""Notices that a client has hung up while the proxy waits for something else than its bytes."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

_PROBES = ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1))
_CERTAIN_SECONDS = 2.5
"""After this time without a sign, a client that has sent its last byte still reads: two probes were answered."""


class HangUp:
    """Watches a client while this context is entered, without reading from it.

    A client that closes its connection and one that only says that it will send no more look the same: both send FIN. So it is
    probed from then on. Sandboxes forget closed connections at once (`sandbox.namespaces`), and the probe of a connection that
    nobody has is answered with a reset.

    Attributes:
        noticed: Done once nobody has the client's end any more.
    """

    def __init__(self, client: socket.socket, call: Callable[[], object]) -> None:
        """Begin to watch.

        Args:
            client: Its socket, which must not be closed meanwhile.
            call: Is called once it has hung up, on the running loop.

        Raises:
            OSError: There is no descriptor left for the watch.
        """
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._call = call
        self._sends_no_more = False
        self.noticed: asyncio.Future[None] = self._loop.create_future()
        # Not the loop's own watch: it would report bytes that were sent ahead in every turn, and no FIN behind them.
        self._watch = select.epoll(1)
        self._watch.register(client, select.EPOLLRDHUP)  # what is broken is always reported
        self._loop.add_reader(self._watch.fileno(), self._look)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.remove_reader(self._watch.fileno())
        self._watch.close()

    async def is_certain(self) -> bool:
        """Find out whether it has hung up by now. That takes a moment if it will send no more."""
        self._look()
        if self._sends_no_more:
            await asyncio.wait([self.noticed], timeout=_CERTAIN_SECONDS)
        return self.noticed.done()

    def _look(self) -> None:
        for _, event in self._watch.poll(0):
            if event & (select.EPOLLHUP | select.EPOLLERR):
                self._watch.unregister(self._client)
                self.noticed.set_result(None)
                self._call()
            else:
                self._watch.modify(self._client, 0)
                self._probe()

    def _probe(self) -> None:
        self._sends_no_more = True
        if self._client.family != socket.AF_UNIX:  # there, both look different
            for option, seconds in _PROBES:
                self._client.setsockopt(socket.IPPROTO_TCP, option, seconds)
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
