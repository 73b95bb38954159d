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
                return self.tls.read(size)
            except ssl.SSLWantReadError:
                await self._flush()  # an answer to a change of keys
                await self._feed()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                # Without a closing alert, too: h11 notices bodies that are shorter than announced.
                return b""

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view[:_READ]) :]
            await self._flush()

    def is_stale(self) -> bool:
        """Return whether the other side has closed the connection, or sent something that no one asked for."""
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
        self._connection.close()

    def reset(self) -> None:
        reset(self._connection)

    async def _feed(self) -> bool:
        data = await self._loop.sock_recv(self._connection, _READ)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        return bool(data)

    async def _flush(self) -> None:
        if not self._out.pending:
            return
        async with self._flushing:  # both directions write
            if data := self._out.read():
                await self._loop.sock_sendall(self._connection, data)
