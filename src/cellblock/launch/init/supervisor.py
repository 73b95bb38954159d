"""Answers system calls that a session's filter leaves to init, because filters cannot see paths or addresses.

The calling process waits meanwhile. Init reads what it needs from that process, once, and then performs the action itself:
later changes of the caller's memory have no effect. Only a signal to the caller itself is left to the kernel, because that
depends only on numbers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Collection

from cellblock.launch.init import signalling
from cellblock.launch.init.caller import Arguments, Caller
from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall import call
from cellblock.walls.linux.syscall_numbers import BY_MACHINE
from cellblock.walls.sandbox.paths import is_inside

_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_SETID = 0o6000
_LOW = 0xFFFFFFFF  # the half of an argument that is an owner; with all bits set, the owner stays
_LOOPBACK = "127.0.0.1"
_PATIENCE = 0.2  # seconds for a connection to the host, which listens


class Supervisor:
    """The handler of one session's filters: the filters of its worker and of programs that init runs.

    Attributes:
        writable: The directories in which the session may change files.
        file_size: Maximum size of a file of the session.
        ports: The ports of listeners that init has opened for the host to serve.
    """

    def __init__(self, poll: select.poll) -> None:
        """Start without filters.

        Args:
            poll: Polls the descriptors to be served.
        """
        self.writable: Collection[str] = ()
        self.file_size = 0
        self.ports: set[int] = set()
        self._poll = poll
        self._expected: dict[int, socket.socket] = {}
        self._listeners: set[int] = set()
        table = BY_MACHINE[os.uname().machine]
        answers: dict[str, Callable[[Caller, Arguments], bool | None]] = {
            "chmod": lambda caller, given: self._chmod(caller, abi.AT_FDCWD, given[0], given[1], 0),
            "fchmod": lambda caller, given: self._chmod(caller, given[0], 0, given[1], abi.AT_EMPTY_PATH),
            "fchmodat": lambda caller, given: self._chmod(caller, given[0], given[1], given[2], 0),
            "fchmodat2": lambda caller, given: self._chmod(caller, *given[:4]),
            "chown": lambda caller, given: self._chown(caller, abi.AT_FDCWD, given[0], given[1:3], 0),
            "lchown": lambda caller, given: self._chown(caller, abi.AT_FDCWD, given[0], given[1:3], abi.AT_SYMLINK_NOFOLLOW),
            "fchown": lambda caller, given: self._chown(caller, given[0], 0, given[1:3], abi.AT_EMPTY_PATH),
            "fchownat": lambda caller, given: self._chown(caller, given[0], given[1], given[2:4], given[4]),
            "utimensat": self._utimensat,
            "truncate": self._truncate,
            "connect": self._connect,
            "kill": signalling.kill,
            "tkill": signalling.tkill,
            "tgkill": signalling.tgkill,
            "rt_sigqueueinfo": signalling.rt_sigqueueinfo,
            "rt_tgsigqueueinfo": signalling.tgkill,
            "pidfd_send_signal": signalling.pidfd_send_signal,
        }
        """True: the call proceeds unchanged. Otherwise init has performed it, or raises."""
        self._answers = {table[name]: answer for name, answer in answers.items() if name in table}

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._listeners or descriptor in self._expected

    def expect(self) -> socket.socket:
        """Return a socket over which a process that confines itself sends its filter's listener."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._expected[ours.fileno()] = ours
        self._poll.register(ours.fileno(), select.POLLIN)
        return theirs

    def serve(self, descriptor: int, event: int) -> None:
        """Handle an event on one of our descriptors."""
        if descriptor in self._expected:
            self._take(descriptor)
        elif event & select.POLLIN:
            self._answer(descriptor)
        else:  # the filtered processes have ended
            self._poll.unregister(descriptor)
            self._listeners.discard(descriptor)
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        with self._expected.pop(descriptor) as ours:
            try:
                _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
            except OSError:
                return  # it has ended
        for listener in descriptors:
            self._listeners.add(listener)
            self._poll.register(listener, select.POLLIN)

    def _answer(self, listener: int) -> None:
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, abi.SECCOMP_IOCTL_NOTIF_RECV, notice)
        except OSError:
            return  # the caller was interrupted, or has ended
        number, pid, _flags, call_number, _machine, _where, *arguments = _NOTICE.unpack(notice)
        refusal = flags = 0
        try:
            if self._answers[call_number](Caller(listener, number, pid), tuple(arguments)):
                flags = abi.SECCOMP_USER_NOTIF_FLAG_CONTINUE
        except OSError as error:
            refusal = error.errno or errno.EPERM
        except KeyError:
            refusal = errno.ENOSYS
        try:
            fcntl.ioctl(listener, abi.SECCOMP_IOCTL_NOTIF_SEND, _ANSWER.pack(number, 0, -refusal, flags))
        except OSError:
            return  # likewise

    # -- attributes of files -------------------------------------------------------------------------------------------

    def _chmod(self, caller: Caller, directory: int, path: int, mode: int, flags: int) -> None:
        if mode & _SETID:
            raise PermissionError(errno.EPERM, "set-id bits")
        with caller.opened(directory, path, flags) as held:
            self._check_own(held)
            os.chmod(f"/proc/self/fd/{held}", mode & 0o7777)

    def _chown(self, caller: Caller, directory: int, path: int, owners: Arguments, flags: int) -> None:
        """Accept if the file already has these owners: tar sets them for every file, if it runs as root."""
        with caller.opened(directory, path, flags) as held:
            self._check_own(held)
            found = os.fstat(held)
        if any(owner & _LOW not in (_LOW, now) for owner, now in zip(owners, (found.st_uid, found.st_gid), strict=True)):
            raise PermissionError(errno.EPERM, "owners stay what they are")

    def _utimensat(self, caller: Caller, given: Arguments) -> None:
        directory, path, times, flags = given[:4]
        wanted = caller.read(times, 32) if times else None
        with caller.opened(directory, path, flags if path else abi.AT_EMPTY_PATH) as held:
            self._check_own(held)
            call("utimensat", abi.AT_FDCWD, f"/proc/self/fd/{held}".encode(), wanted, 0)

    def _truncate(self, caller: Caller, given: Arguments) -> None:
        path, size = given[:2]
        if size > self.file_size:
            raise OSError(errno.EFBIG, "larger than files may be")
        with caller.opened(abi.AT_FDCWD, path, 0) as held:
            self._check_own(held)
            os.truncate(f"/proc/self/fd/{held}", size)

    def _check_own(self, held: int) -> None:
        """Check that this user owns an open file, and that the session may change files there."""
        if os.fstat(held).st_uid != os.geteuid():  # init may be root with capabilities, which the session does not have
            raise PermissionError(errno.EPERM, "another user's")
        place = os.readlink(f"/proc/self/fd/{held}")
        if not any(is_inside(place, top) for top in self.writable):
            raise PermissionError(errno.EPERM, "not the session's")

    # -- connections ---------------------------------------------------------------------------------------------------

    def _connect(self, caller: Caller, given: Arguments) -> None:
        """Replace the caller's socket with our own connection, if it is for one of the session's listeners."""
        descriptor, address, size = given[0] & 0xFFFFFFFF, given[1], given[2]
        data = caller.read(address, min(size, 28))
        if len(data) < 8 or data[:2] != struct.pack("=H", socket.AF_INET):
            raise OSError(errno.ENETUNREACH, "no network")
        port, host = int.from_bytes(data[2:4], "big"), socket.inet_ntoa(data[4:8])
        self._check_listener(host, port)
        blocking = caller.is_blocking(descriptor)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
            made.settimeout(_PATIENCE)
            made.connect((_LOOPBACK, port))
            made.setblocking(blocking)
            caller.replace(descriptor, made.fileno())

    def _check_listener(self, host: str, port: int) -> None:
        if host != _LOOPBACK:
            raise OSError(errno.ENETUNREACH, "no network")
        if port not in self.ports:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "not the session's")
