"""The worker's end of the channel: whole frames out, messages in."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import select
import socket
import threading
from signal import SIG_BLOCK, SIG_SETMASK, SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM

from cellblock.wire.messages import Message
from cellblock.wire.protocol import Conversation, Side

# `signal.pthread_sigmask` turns every number into an enum member, which costs more than the system call.
_sigmask = _signal.pthread_sigmask
_HELD = frozenset(map(int, (SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM)))
_RECEIVE = 64 * 1024  # below malloc's threshold for mmap: a larger buffer costs three system calls each time


def hold_signals() -> set[int]:
    """Keep Python's signal handlers out of what follows; return what `release_signals` wants.

    A handler may raise: KeyboardInterrupt, or the TimeoutError of somebody's SIGALRM. In the middle of a frame that
    would cut the frame in two and put the channel out of step. (Not a context manager: this is on the path of every line.)
    """
    before: set[int] = _sigmask(SIG_BLOCK, _HELD)
    return before


def release_signals(before: set[int]) -> None:
    """Undo `hold_signals`."""
    _sigmask(SIG_SETMASK, before)


class Channel:
    """Sends and receives messages on a blocking socket.

    A send blocks while the host does not read: that is the back-pressure that a printing cell feels.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._conversation = Conversation(Side.WORKER)
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def send(self, message: Message) -> None:
        """Send one message, whole, whatever signals come meanwhile.

        Raises:
            ProtocolError: The message is too large or out of turn.
            OSError: The host is gone.
        """
        before = hold_signals()
        try:
            with self._lock:
                self._sock.sendall(self._conversation.send(message))
        finally:
            release_signals(before)

    def receive(self, wait: bool = False) -> list[Message] | None:
        """Return the messages that have arrived, or None when the host has closed the channel.

        Args:
            wait: Block until something arrives. Signal handlers run meanwhile, and may raise.
        """
        if wait:
            select.select([self._sock], [], [])
        try:
            data = self._sock.recv(_RECEIVE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        if not data:
            return None
        return self._conversation.receive(data)

    def close(self) -> None:
        """Close the socket; in a forked child this leaves the parent's end alone."""
        self._sock.close()
