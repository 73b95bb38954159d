"""Accepts client connections. When descriptors run out, new clients get an error; existing ones continue.

asyncio would leave new clients without an answer until descriptors are free, and log a thousand errors a second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from cellblock.errors import BusyError
from cellblock.service.daemon.codec import encode_error

_log = logging.getLogger("cellblock.daemon")

_AT_ONCE = 64
"""Connections that are taken in one turn of the loop."""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOTHING = os.O_RDONLY | os.O_CLOEXEC
_HELLO = 1
"""The number of a client's first request."""

_PATIENCE, _PAUSE = 1.0, 1.0
_MOST_SAID = 64 * 1024


class Listening:
    """A listening socket. It reserves a descriptor to answer clients when no other is free."""

    def __init__(self, sock: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        """Start to accept connections.

        Args:
            sock: The socket, which this object owns.
            make: Creates the protocol of a connection.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._make = make
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserve: int | None = os.open(os.devnull, _NOTHING)
        self._short = False
        self._closed = False
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Stop accepting connections."""
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        self._give_up_reserve()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                client, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._loop.remove_reader(self._socket)
                self._begin(self._refuse_one(error))
                return
            self._short = False
            self._begin(self._serve(client))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._make, client)
        except OSError as error:
            _log.warning("a connection cannot be served: %s", error)
            client.close()

    async def _refuse_one(self, error: OSError) -> None:
        """Use the reserved descriptor to tell a client that none is left."""
        if not self._short:
            _log.error("no connection can be taken: %s", error)
        self._short = True
        self._give_up_reserve()
        try:
            client, _ = self._socket.accept()
            with client:
                client.setblocking(False)
                async with asyncio.timeout(_PATIENCE):
                    await self._loop.sock_recv(client, _MOST_SAID)
                    busy = BusyError(
                        f"the daemon can take no more connections now ({error.strerror}): try again later", _PAUSE
                    )
                    await self._loop.sock_sendall(client, encode_error(_HELLO, busy))
        except (OSError, TimeoutError):
            await asyncio.sleep(_PAUSE)  # the descriptor was taken again, or the client sends nothing
        finally:
            with suppress(OSError):
                self._reserve = None if self._closed else os.open(os.devnull, _NOTHING)
        if not self._closed:
            self._loop.add_reader(self._socket, self._accept)

    def _give_up_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
