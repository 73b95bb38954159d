"""A synchronous client connection to the daemon. It needs the standard library only."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from cellblock.common.version import __version__
from cellblock.errors import (
    CellblockError,
    DaemonError,
    ExecutionTimeoutError,
    NotRunError,
    OutcomeUnknownError,
    ProtocolError,
)
from cellblock.operations.base import PROTOCOL, AnswerT, Request
from cellblock.operations.sessions import Hello
from cellblock.service.daemon.codec import MAX_REPLY, REFUSED, UNREADABLE, decode_answer, encode_request, unreadable
from cellblock.service.daemon.place import Place, credentials
from cellblock.wire.frames import Frame, FrameParser
from cellblock.wire.packed import Packed, unpack

_READ = 64 * 1024
"""Bytes that are read at once. The C library would fetch memory for more from the system, each time."""


ANSWER = 30.0
"""Seconds in which a living daemon introduces itself."""


def silent(pid: int | None, seconds: float) -> str:
    """Return the message about a daemon that does not respond, with the command to end it.

    Args:
        pid: The daemon's process id; None if unknown.
        seconds: How long the client has waited.
    """
    if pid is None:
        return f"the daemon does not answer within {seconds:g} s; see its log"
    state = ""
    with suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    why = f"It is stopped: 'kill -CONT {pid}' lets it continue." if state in ("t", "T") else "It may be waiting for a disk."
    return (
        f"the daemon, process {pid}, does not answer within {seconds:g} s. {why} 'kill -KILL {pid}' ends the daemon alone: "
        "its sessions stay, and the next command takes them over"
    )


class SessionConnection(Protocol):
    """A connection to where the sessions are: the daemon, or the nodes of a cluster.

    One thread uses it at a time.
    """

    @property
    def usable(self) -> bool:
        """Whether the connection is open and belongs to this process."""

    def close(self) -> None:
        """Close the connection. Executions continue."""

    def call(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
        """Run an operation, and return its answer.

        Raises:
            CellblockError: The error at the session, of the same class.
        """

    def follow(self, request: Request[Any], body: bytes = b"") -> Iterator[Any]:
        """Send a request that has many answers, and yield them as they arrive."""

    def hears_before(self, descriptor: int) -> bool:
        """While `follow` is in progress, wait for more parts or until a descriptor is readable.

        Returns:
            Whether there are more parts.
        """


class Connection:
    """A connection to a daemon. One thread uses it at a time; others wait for their turn.

    Attributes:
        daemon: The daemon's description of itself: ``protocol``, ``version``, ``pid``, ``started``.
    """

    def __init__(self, sock: socket.socket, version: str, *, any_daemon: bool = False, patience: float | None = None) -> None:
        """Open a connection and introduce this client.

        Args:
            sock: The connected socket, which the connection owns.
            version: The version of this client's cellblock.
            any_daemon: Whether to stay connected to a daemon of another version, which can only be ended.
            patience: Seconds to wait for the daemon to introduce itself; None for no limit. Later answers have none: an answer
                can wait for a cell.

        Raises:
            NotRunError: The daemon has ended meanwhile.
            DaemonError: The daemon has another version, or does not respond.
        """
        self._patience = patience
        self._silent = False
        self._socket = sock
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._process = os.getpid()
        self._pid = credentials(sock)[0]
        self._parser = FrameParser(MAX_REPLY)
        self._lock = threading.Lock()
        self._number = 0
        self._received: deque[Frame] = deque()
        self.closed = False
        try:
            self.daemon: dict[str, Any] = {}
            self.daemon = self.call(Hello(PROTOCOL, version))
            self._patience = None
        except BaseException as error:  # also Ctrl-C: the caller never gets the connection, and cannot close it
            lost = self.closed  # an error answer leaves the connection open
            if any_daemon and not lost and not self._silent and isinstance(error, DaemonError):
                return
            self.close()
            if lost and isinstance(error, DaemonError):
                raise NotRunError(str(error)) from error
            raise

    @property
    def usable(self) -> bool:
        """Whether the connection is open and belongs to this process."""
        return not self.closed and self._process == os.getpid()

    def __del__(self) -> None:
        if sock := getattr(self, "_socket", None):
            sock.close()  # belongs to an ended thread; dropping an open socket would warn

    def close(self) -> None:
        """Close the connection. Executions continue."""
        self.closed = True
        self._socket.close()

    def call(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
        """Send a request, and return the answer: JSON data, or bytes.

        Args:
            request: The request.
            body: The body of the request.

        Raises:
            CellblockError: The daemon's error, of the same class.
            NotRunError: The daemon had ended or was ending, so the request was not sent. The connection is closed.
            OutcomeUnknownError: The daemon ended meanwhile, perhaps after handling a request that must not be repeated.
            DaemonError: The daemon ended meanwhile, and the request can be repeated (`Request.may_repeat`).
        """
        with self._lock:
            answer: AnswerT
            for answer, _ in self._ask(request, body):
                return answer
        raise AssertionError("an answer has at least one part")

    def follow(self, request: Request[Any], body: bytes = b"") -> Iterator[Any]:
        """Send a request that has many answers, and yield them as they arrive.

        Stopping early closes the connection. Otherwise the next request would read the remaining parts.
        """
        with self._lock:
            try:
                for answer, more in self._ask(request, body):
                    if more:
                        yield answer
            except GeneratorExit:
                self.close()
                raise

    def hears_before(self, descriptor: int) -> bool:
        """While `follow` is in progress, wait for more parts or until a descriptor is readable.

        Returns:
            Whether the daemon has sent more parts.
        """
        if self._received:
            return True
        watched = select.poll()  # does not fail for a closed descriptor
        watched.register(self._socket, select.POLLIN)
        watched.register(descriptor, select.POLLIN)
        return any(number == self._socket.fileno() for number, _ in watched.poll())

    def _ask(self, request: Request[Any], body: bytes) -> Iterator[tuple[Any, bool]]:
        if not self.usable:
            raise DaemonError("the connection to the daemon is closed, or belongs to the process before a fork")
        self._number += 1
        data = encode_request(self._number, request, body)
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise NotRunError(f"the daemon ended before the request was sent: {error.strerror or error}") from error
        except BaseException:  # Ctrl-C in the middle of a request: following bytes would be read as its rest
            self.close()
            raise
        try:
            while True:
                number, answer, more = self._receive()
                if number == UNREADABLE:
                    self.close()
                    raise unreadable(answer)
                if number != self._number:
                    continue  # an answer to an interrupted request
                if answer is REFUSED:
                    self.close()
                    raise NotRunError("the daemon was shutting down, and the request was not sent")
                if isinstance(answer, CellblockError):
                    raise answer
                yield unpack(answer) if isinstance(answer, Packed) else answer, more
                if not more:
                    return
        except ExecutionTimeoutError:
            raise  # an answer, although it is an OSError
        except OSError as error:
            self.close()
            lost = f"the connection to the daemon was lost: {error.strerror or error}"
            if request.may_repeat:
                raise DaemonError(lost) from error
            raise OutcomeUnknownError(f"{lost}; it is not known whether the request {request.op!r} was carried out") from error
        except (KeyboardInterrupt, SystemExit, ProtocolError):
            self.close()  # perhaps in the middle of a request or an answer
            raise

    def _receive(self) -> tuple[int, Any, bool]:
        while not self._received:
            if not self._readable.poll(None if self._patience is None else 1000 * self._patience):
                self._silent = True
                raise DaemonError(silent(self._pid, self._patience or 0))
            # Not by waiting in `recv`, which also wakes up when the daemon reads the request.
            data = self._socket.recv(_READ)
            if not data:
                raise ConnectionResetError(0, "it has ended")
            self._received.extend(self._parser.frames(data))
        return decode_answer(self._received.popleft())


def open_if_running(place: Place) -> Connection | None:
    """Connect to a daemon; return None if none is running.

    Raises:
        DaemonError: The daemon cannot be reached, or has another version.
    """
    sock = place.connect()
    with suppress(NotRunError):  # it has just ended
        return None if sock is None else Connection(sock, __version__, patience=ANSWER)
    return None
