"""One end of a connection with TLS, over memory buffers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

from cellblock.walls.egress.tunnel import reset

_READ = 64 * 1024


class TlsEnd:
    """A socket with TLS.

    Args:
        connection: The socket, non-blocking; owned by this object.
        context: The TLS settings.
        early: Bytes that were already received.
        hostname: The name of the server; None for the server itself.
    """

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, *, early: bytes = b"", hostname: str | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._in.write(early)
        self.tls = context.wrap_bio(self._in, self._out, server_side=hostname is None, server_hostname=hostname)
        self._flushing = asyncio.Lock()
        self._watched = False
        self._waiting: asyncio.Future[bool] | None = None

    async def handshake(self) -> None:
        """Perform the TLS handshake.

        Raises:
            OSError: It failed (`ssl.SSLError` is one), or the connection is broken.
        """
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._feed():
                    raise ConnectionResetError("the connection was closed during the TLS handshake") from None
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()  # the alert
                raise
            else:
                await self._flush()
                return

    async def receive(self, size: int) -> bytes:
        while True:
            try:
                if self._has_input():
                    return self.tls.read(size)
            except ssl.SSLWantReadError:
                await self._flush()  # an answer to a change of keys
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                # Without a closing alert, too: h11 notices bodies that are shorter than announced.
                return b""
            await self._feed()

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view[:_READ]) :]
            await self._flush()

    def is_stale(self) -> bool:
        """Return whether the other side has closed the connection, or sent something that no one asked for."""
        if self._watched and not self._has_input():
            return False  # the loop would have stopped to watch
        try:
            data = self._connection.recv(_READ)
        except (BlockingIOError, InterruptedError):
            data = None
        except OSError:
            return True
        if data is not None:
            self._in.write(data) if data else self._in.write_eof()
        try:
            self.tls.read(1)
        except ssl.SSLWantReadError:
            return False  # a session ticket, for example
        except ssl.SSLError:
            return True
        return True

    def end(self) -> None:
        """Close the sending direction."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            self.tls.unwrap()  # writes the closing alert, and does not wait for the other
        with contextlib.suppress(OSError):
            if pending := self._out.read():
                self._connection.send(pending)
        self._unwatch()
        self._connection.close()

    def reset(self) -> None:
        self._unwatch()
        reset(self._connection)

    def _has_input(self) -> bool:
        return bool(self._in.pending or self._in.eof or self.tls.pending())

    async def _feed(self) -> bool:
        """Wait for bytes. Return whether there are any, and not the end of the stream."""
        self._waiting = self._loop.create_future()
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._connection, self._readable)
        return await self._waiting

    def _readable(self) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            # No one reads now. Otherwise, the socket stays watched: to begin and end this for each read takes long.
            self._unwatch()
            return
        try:
            data = self._connection.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            waiting.set_exception(error)
            return
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        waiting.set_result(bool(data))

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._connection)

    async def _flush(self) -> None:
        if not self._out.pending:
            return
        async with self._flushing:  # both directions write
            if data := self._out.read():
                await self._loop.sock_sendall(self._connection, data)
