"""The worker's end of the channel: complete frames out, messages in."""

from __future__ import annotations

import _thread
import fcntl
import select
import socket
import termios

from cellblock.wire.messages import Message
from cellblock.wire.protocol import Conversation, Side
from cellblock.worker.gate import GATE

CHANNEL, NURSERY = 3, 4
"""The worker's descriptors besides 0 to 2: its end of the channel, and where its copies register with init."""

_NOTHING = bytes(4)
_RECEIVE = 64 * 1024  # below malloc's threshold for mmap: a larger buffer costs three system calls each time


class Channel:
    """Sends and receives messages on a blocking socket.

    A send blocks while the host does not read. This backpressure slows down a printing cell.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._conversation = Conversation(Side.WORKER)
        self._lock = _thread.RLock()
        self._main = _thread.get_ident()

    def renew(self) -> None:
        """Start again in a copy of a worker, with the new channel behind the same descriptor."""
        self._conversation = Conversation(Side.WORKER)
        self._lock = _thread.RLock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def readable(self) -> bool:
        """Return whether a message has arrived, or the host has closed the channel."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def wait(self) -> None:
        """Wait until a message has arrived, or the host has closed the channel. Signal handlers run meanwhile."""
        select.select([self._sock], [], [])

    def unread(self) -> bool:
        """Return whether some sent data is unread by the host."""
        try:
            return bool(fcntl.ioctl(self._sock, termios.TIOCOUTQ, _NOTHING) != _NOTHING)
        except OSError:
            return False  # the code has closed it

    def send(self, message: Message) -> None:
        """Send one complete message, even if signals arrive meanwhile.

        Raises:
            ProtocolError: The message is too large or out of turn.
            OSError: The host has ended.
        """
        if _thread.get_ident() != self._main:
            with self._lock:
                self._sock.sendall(self._conversation.send(message))
            return
        GATE.shut += 1
        try:
            with self._lock:
                self._sock.sendall(self._conversation.send(message))
        finally:
            GATE.open()

    def receive(self, wait: bool = False) -> list[Message] | None:
        """Return the messages that have arrived, or None when the host has closed the channel.

        Args:
            wait: Whether to block until something arrives. Signal handlers run meanwhile, and may raise.
        """
        if wait:
            self.wait()
        GATE.shut += 1
        try:
            data = self._sock.recv(_RECEIVE, socket.MSG_DONTWAIT)
            return self._conversation.receive(data) if data else None
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        finally:
            GATE.open()

    def close(self) -> None:
        """Close the socket. In a forked child, the parent's end stays open."""
        self._sock.close()
