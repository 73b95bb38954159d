"""Copies of workers that wait in a session's init until kernels are created from them."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence

from cellblock.errors import ProtocolError
from cellblock.launch.init import processes
from cellblock.wire.copies import FROM_COPY, Copied, Start, Taken, Untaken
from cellblock.wire.datagrams import MAX_CONTROL, encode_control

_MAX_COPIES = 2000
_SECONDS_TO_HIDE, _MOST_SECONDS_TO_HIDE = 3.0, 60.0
_MOST_SAID = 100
"""Maximum messages to read from a copy when it is dropped: it sends one for each kernel that is made from it."""

HIDE = b"h"
"""Message to a new copy: it can be measured, and shall hide from the code. It answers on its own connection (`Copied`)."""

_WHO = struct.Struct("iII")  # struct ucred: the sender of a message, according to the kernel
_ROOM = socket.CMSG_SPACE(_WHO.size) + socket.CMSG_SPACE(4)
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)


def receive(sock: socket.socket) -> tuple[bytes, int, int | None]:
    """Return a message, the pid of its sender, and its descriptor, if any.

    The sender may be hostile: other descriptors are closed.
    """
    data, ancillary, _, _ = sock.recvmsg(MAX_CONTROL, _ROOM, _FLAGS)
    pid, descriptors = 0, []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = _WHO.unpack(content[: _WHO.size])[0]
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = [item for (item,) in struct.iter_unpack("i", content[: len(content) // 4 * 4])]
    for descriptor in descriptors[1:]:
        os.close(descriptor)
    return data, pid, descriptors[0] if descriptors else None


class Parked:
    """The copies of one session's workers."""

    def __init__(
        self,
        nursery: socket.socket,
        poll: select.poll,
        *,
        on_copied: Callable[[int], None],
        on_gone: Callable[[int], None],
        on_untaken: Callable[[int], None],
        on_taken: Callable[[int, int], None],
    ) -> None:
        """Start without copies.

        Args:
            nursery: The socket on which new copies register. All workers and copies have its other end.
            poll: Polls the descriptors to be served.
            on_copied: Called with the number of a new copy.
            on_gone: Called with the number of a copy that has ended.
            on_untaken: Called with the number of a kernel that could not be created from a copy.
            on_taken: Called with the number of a kernel that was created from a copy, and its pid.
        """
        nursery.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._nursery = nursery
        self._poll = poll
        self._copies: dict[int, tuple[int, socket.socket]] = {}
        """The number of a copy → its pid, and the connection to it."""
        self._processors: dict[int, set[int]] = {}
        """The number of a copy → the processors that it runs on. Code can change them: it has the same user."""
        self._hiding: dict[int, float] = {}
        """The number of a copy that has not answered `HIDE` → when it was asked."""
        self._ended: deque[int] = deque(maxlen=100)
        """The last children that have ended and were no copies. One may have registered just before."""
        self._numbers: dict[int, int] = {}
        """The descriptor of a connection → the number of its copy."""
        self._on_copied, self._on_gone = on_copied, on_gone
        self._on_untaken, self._on_taken = on_untaken, on_taken
        poll.register(nursery.fileno(), select.POLLIN)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor == self._nursery.fileno() or descriptor in self._numbers

    @property
    def pids(self) -> set[int]:
        """The processes of all copies."""
        return {pid for pid, _ in self._copies.values()}

    def serve(self, descriptor: int) -> None:
        """Handle an event on one of our descriptors."""
        if descriptor == self._nursery.fileno():
            self._take()
        else:
            self._hear(self._numbers[descriptor])

    def _take(self) -> None:
        """Register a new copy, if it is one: a direct child of this process."""
        try:
            data, pid, descriptor = receive(self._nursery)
        except OSError:
            return
        if not data:
            self._poll.unregister(self._nursery.fileno())  # there is no worker and no copy
            return
        if descriptor is None:
            return
        try:
            message = FROM_COPY.decode(data)
        except ProtocolError:
            message = None
        if (
            not isinstance(message, Copied)
            or message.number in self._copies
            or len(self._copies) >= _MAX_COPIES
            or not self._is_new(pid)
        ):
            os.close(descriptor)
            if isinstance(message, Copied) and message.number not in self._copies and pid in self._ended:
                self._on_gone(message.number)
            return
        try:
            sock = socket.socket(fileno=descriptor)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        except OSError:  # not a socket
            os.close(descriptor)
            return
        self._copies[message.number] = pid, sock
        self._numbers[sock.fileno()] = message.number
        self._poll.register(sock.fileno(), select.POLLIN)
        processes.keep_measurable(pid)
        try:
            self._processors[message.number] = os.sched_getaffinity(pid)
            sock.send(HIDE, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            self._hiding[message.number] = time.monotonic()
        except OSError:
            self._end(message.number)

    def _is_new(self, pid: int) -> bool:
        """Return whether a process can be a new copy: a direct child. Its pid cannot be reused before it is waited for."""
        return _is_child(pid) and pid not in self.pids

    def _hear(self, number: int) -> None:
        """Handle a message about a kernel that was created from a copy."""
        pid, sock = self._copies[number]
        try:
            data, sender, descriptor = receive(sock)
        except BlockingIOError:
            return
        except OSError:
            data, sender, descriptor = b"", 0, None
        if descriptor is not None:
            os.close(descriptor)
        try:
            message = FROM_COPY.decode(data) if data else None
        except ProtocolError:
            message = None
        if message == Copied(number) and sender == pid:
            self._hiding.pop(number, None)
            self._on_copied(number)
        elif isinstance(message, Untaken) and sender == pid:
            self._on_untaken(message.kernel)
        elif isinstance(message, Taken) and sender != pid and _is_child(sender):
            self._on_taken(message.kernel, sender)
        else:
            self._end(number)

    def start(self, number: int, message: Start, descriptors: Sequence[int]) -> bool:
        """Create a kernel from a copy. Return whether the copy exists."""
        if number not in self._copies:
            return False
        pid, sock = self._copies[number]
        try:
            os.sched_setaffinity(pid, self._processors[number])
            os.kill(pid, signal.SIGCONT)  # code may have stopped all processes that it sees
            socket.send_fds(sock, [encode_control(message)], descriptors, socket.MSG_DONTWAIT)
        except OSError:
            self._end(number)
            return False
        return True

    def drop(self, number: int) -> None:
        """End a copy. Its earlier messages are handled first: a kernel that was just created from it lives on."""
        for _ in range(_MOST_SAID):
            if number not in self._copies or not processes.is_readable(self._copies[number][1]):
                break
            self._hear(number)
        self._end(number)

    def end_silent(self) -> None:
        """End processes that claim to be copies and do not answer as one. The host does not know them, so it drops none."""
        for number, asked in [*self._hiding.items()]:
            pid, sock = self._copies[number]
            silent = time.monotonic() - asked
            if silent <= _SECONDS_TO_HIDE:
                continue
            if processes.is_readable(sock):
                self._hear(number)
            elif silent > _MOST_SECONDS_TO_HIDE or processes.waiting(pid):  # not if the machine is too busy to run it
                self._end(number)

    def _end(self, number: int) -> None:
        if number in self._copies:
            # It is a child of ours that was not waited for, or `ended` would have been called: its pid was not reused.
            os.kill(self._copies[number][0], signal.SIGKILL)
            self._forget(number)

    def _forget(self, number: int) -> None:
        """Close the connection to a copy, and report its end."""
        self._hiding.pop(number, None)
        self._processors.pop(number, None)
        pid, sock = self._copies.pop(number)
        processes.forget_measuring(pid)
        del self._numbers[sock.fileno()]
        self._poll.unregister(sock.fileno())
        sock.close()
        self._on_gone(number)

    def keep(self, numbers: Sequence[int]) -> list[int]:
        """End all copies but some. Return the numbers of missing ones."""
        for number in self._copies.keys() - numbers:
            self.drop(number)
        return [number for number in numbers if number not in self._copies]

    def drop_all(self) -> None:
        for number in [*self._copies]:
            self.drop(number)

    def ended(self, pid: int) -> None:
        """Handle the end of a process, which may have been a copy."""
        for number, (copy, _) in self._copies.items():
            if copy == pid:
                self._forget(number)
                return
        self._ended.append(pid)


def _is_child(pid: int) -> bool:
    """Return whether a process is a direct child of this one that was not waited for."""
    if pid <= 0:  # it was sent before the kernel was asked to name the sender
        return False
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
