"""Moves bytes between two sockets in both directions, as fast as one thread can.

This uses the loop's readiness callbacks directly. Bytes are read into a buffer shared by all tunnels and written to the other
side in the same callback; only bytes that it does not accept are kept. So an idle tunnel holds no memory. A stalled one holds
at most one buffer each way, and reads nothing more, so that backpressure reaches the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

BUFFER = 256 * 1024

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def reset_on_close(connection: socket.socket) -> None:
    """Have a connection reset when it is closed."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


def reset(connection: socket.socket) -> None:
    """Reset a connection, so that the other side treats its data as incomplete."""
    reset_on_close(connection)
    connection.close()


class Tunnel:
    """Two joined sockets. Neither is closed here, unless one side breaks: then both are reset.

    Attributes:
        scratch: The shared buffer for bytes within one callback.
        active: Whether bytes moved since the last check.
    """

    def __init__(self, left: socket.socket, right: socket.socket, scratch: memoryview, idle_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._idle_seconds = idle_seconds
        self._ends = (left, right)
        self._flows = (_Flow(self, left, right), _Flow(self, right, left))
        self.scratch = scratch
        self.active = False

    async def run(self) -> None:
        """Move bytes until both sides have ended their streams, one breaks, or both are silent for too long."""
        self._timer = self._loop.call_later(self._idle_seconds, self._look)
        try:
            for flow in self._flows:
                flow.start()
            await self._ended
        finally:
            self._timer.cancel()
            for flow in self._flows:
                flow.stop()

    def flow_ended(self) -> None:
        """Record the end of one side's stream."""
        if all(flow.ended for flow in self._flows):
            self._end()

    def broken(self) -> None:
        """Record that one side broke. The other must not see an orderly end."""
        for flow in self._flows:
            flow.stop()
        for end in self._ends:
            reset(end)
        self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _look(self) -> None:
        # A timer for each read would cost more than moving the bytes, so check twice per period.
        if not self.active:
            self.broken()
            return
        self.active = False
        self._timer = self._loop.call_later(self._idle_seconds, self._look)


class _Flow:
    """One direction."""

    def __init__(self, tunnel: Tunnel, source: socket.socket, sink: socket.socket) -> None:
        self._tunnel = tunnel
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._sink = sink
        self._kept = memoryview(b"")
        self.ended = False

    def start(self) -> None:
        self._loop.add_reader(self._source, self._readable)

    def stop(self) -> None:
        # Closed sockets were removed from the loop before.
        if self._source.fileno() >= 0:
            self._loop.remove_reader(self._source)
        if self._sink.fileno() >= 0:
            self._loop.remove_writer(self._sink)

    def _readable(self) -> None:
        scratch = self._tunnel.scratch
        try:
            count = self._source.recv_into(scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._tunnel.broken()
            return
        self._tunnel.active = True
        if not count:
            self._loop.remove_reader(self._source)
            self._finish()
            return
        sent = self._send(scratch[:count])
        if 0 <= sent < count:
            self._kept = memoryview(bytes(scratch[sent:count]))
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._writable)

    def _writable(self) -> None:
        sent = self._send(self._kept)
        if sent <= 0:
            return
        self._tunnel.active = True
        self._kept = self._kept[sent:]
        if not self._kept:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._readable)

    def _send(self, data: memoryview) -> int:
        """Return the number of bytes that the sink accepted; -1 if it broke, and the tunnel with it."""
        try:
            return self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._tunnel.broken()
            return -1

    def _finish(self) -> None:
        try:
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._tunnel.broken()
            return
        self.ended = True
        self._tunnel.flow_ended()
