"""A process that waits for init to answer its system call. It resolves the numbers and addresses in the arguments."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator

from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall import call

_ADDED = struct.Struct("=QIIII")
_MOST_OF_PATH = 4096
_PAGE = 4096
Arguments = tuple[int, ...]
"""The arguments of a system call."""

_DESCRIPTOR = re.compile(rb"/(?:proc/self|dev)/fd/(\d{1,9})")


class Caller:
    """A process that waits for the answer to its system call.

    Attributes:
        thread: The id of the calling thread.
    """

    def __init__(self, listener: int, number: int, thread: int) -> None:
        """Describe one call.

        Args:
            listener: The listener of its filter.
            number: The kernel's id of this call.
            thread: The id of the calling thread.
        """
        self.thread = thread
        self._listener = listener
        self._number = number

    def read(self, address: int, size: int) -> bytes:
        memory = os.open(f"/proc/{self.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._check_there()
            return os.pread(memory, size, address)
        except (OverflowError, ValueError):
            raise OSError(errno.EFAULT, "no such address") from None
        finally:
            os.close(memory)

    @contextlib.contextmanager
    def opened(self, directory: int, path: int, flags: int) -> Iterator[int]:
        """Yield a descriptor (O_PATH) for the file that it names, without opening the file."""
        name = self._path(path) if path else b""
        if (named := _DESCRIPTOR.fullmatch(name)) is not None:  # how the C library changes the mode of a possible link
            directory, name, flags = int(named[1]), b"", flags | abi.AT_EMPTY_PATH
        if not name and not flags & abi.AT_EMPTY_PATH:
            raise FileNotFoundError(errno.ENOENT, "no path")
        number = directory & 0xFFFFFFFF
        where = "cwd" if number == abi.AT_FDCWD & 0xFFFFFFFF else f"fd/{number}"
        with contextlib.ExitStack() as stack:
            base = os.open(f"/proc/{self.thread}/{where}", os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, base)
            self._check_there()
            if not name:
                yield base
                return
            follow = os.O_NOFOLLOW if flags & abi.AT_SYMLINK_NOFOLLOW else 0
            how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC | follow, 0, abi.RESOLVE_NO_MAGICLINKS)
            found = call("openat2", base, name, how, len(how))
            stack.callback(os.close, found)
            yield found

    def process(self) -> int:
        return int(self._fields("status")["Tgid"])

    def has_thread(self, number: int) -> bool:
        """Return whether its process has a thread with this id."""
        found = os.path.exists(f"/proc/{self.thread}/task/{number}")
        self._check_there()
        return found

    def is_blocking(self, descriptor: int) -> bool:
        """Return whether calls on one of its descriptors block."""
        return not int(self._fields(f"fdinfo/{descriptor}")["flags"], 8) & os.O_NONBLOCK

    def process_behind(self, descriptor: int) -> int:
        """Return the id of the process that one of its descriptors, a pidfd, refers to."""
        try:
            return int(self._fields(f"fdinfo/{descriptor}")["Pid"])
        except (FileNotFoundError, KeyError):
            raise OSError(errno.EBADF, "no pidfd") from None

    def replace(self, descriptor: int, ours: int) -> None:
        """Replace one of its descriptors by one of ours."""
        added = _ADDED.pack(self._number, abi.SECCOMP_ADDFD_FLAG_SETFD, ours, descriptor, 0)
        while True:
            try:
                fcntl.ioctl(self._listener, abi.SECCOMP_IOCTL_NOTIF_ADDFD, added)
            except InterruptedError:  # a child of init has ended: the caller must not get EINTR for it
                continue
            return

    def _fields(self, name: str) -> dict[str, str]:
        with open(f"/proc/{self.thread}/{name}", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        self._check_there()
        return fields

    def _path(self, address: int) -> bytes:
        found = b""
        while len(found) < _MOST_OF_PATH:
            piece = self.read(address + len(found), _PAGE - (address + len(found)) % _PAGE)
            end = piece.find(b"\0")
            if end >= 0:
                return found + piece[:end]
            if not piece:
                break
            found += piece
        raise OSError(errno.ENAMETOOLONG, "no end of the path")

    def _check_there(self) -> None:
        """Check that the process still waits, because its id could be reused."""
        fcntl.ioctl(self._listener, abi.SECCOMP_IOCTL_NOTIF_ID_VALID, struct.pack("=Q", self._number))
