"""Where a user's daemon is found: a socket in the state directory, which nobody else can reach."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from cellblock.common import config
from cellblock.errors import DaemonError

Owner: TypeAlias = Literal["ours", "another's", "gone", "unknown"]
RESTART = signal.SIGHUP
"""The signal that makes a daemon hand over to the next one."""

_PEER = struct.Struct("iII")


class Place:
    """The directory of a daemon, and the files in it.

    Attributes:
        directory: The state directory.
        socket: The socket that the daemon listens on.
        lock: Held by the daemon for as long as it lives.
        starting: A lock, held by the process that starts a daemon.
        log: The daemon's log file.
    """

    def __init__(self, directory: Path | None = None) -> None:
        # Resolved once: the directory may be a link, to another disk, say, and whoever opens it follows none.
        self.directory = Path(os.path.realpath(directory or config.state_directory()))
        self.socket = self.directory / "daemon.sock"
        self.lock = self.directory / "daemon.lock"
        self.starting = self.directory / "daemon.starting"
        self.log = self.directory / "daemon.log"

    def prepare(self) -> None:
        """Make the directory, for this user alone, and check that it is.

        Raises:
            DaemonError: It cannot be made, or others can change it.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.directory.stat()
        except OSError as error:
            raise self.unusable(error) from error
        if found.st_uid != os.geteuid():
            raise DaemonError(f"{self.directory} belongs to another user, who could pretend to be the daemon")
        if found.st_mode & 0o077:
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise DaemonError(f"others can write to {self.directory} and pretend to be the daemon: chmod 700 it")
            self.directory.chmod(0o700)

    def unusable(self, error: OSError) -> DaemonError:
        """Return the error for a directory in which nothing can be made."""
        why = f"{self.directory} cannot be used for the daemon: {error.strerror}"
        return DaemonError(f"{why}; CELLBLOCK_HOME can name another directory")

    def connect(self) -> socket.socket | None:
        """Connect to the daemon; None if there is none.

        Raises:
            DaemonError: The socket belongs to another user.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._at(sock.connect)
            owner = peer(sock)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            sock.close()
            return None
        except OSError as error:
            sock.close()
            raise DaemonError(f"the daemon cannot be reached at {self.socket}: {error.strerror}") from error
        if owner != os.geteuid():
            sock.close()
            raise DaemonError(f"{self.socket} belongs to a process of another user (uid {owner}): remove it")
        return sock

    def listen(self) -> socket.socket:
        """Listen there, in place of a daemon that is gone. Only the holder of the lock does this.

        Raises:
            DaemonError: A directory is in the socket's place.
            OSError: It is not possible.
        """
        try:
            self.socket.unlink(missing_ok=True)
        except IsADirectoryError:
            raise DaemonError(f"{self.socket} is a directory, and the daemon's socket has to be there: remove it") from None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            before = os.umask(0o077)
            try:
                self._at(sock.bind)
            finally:
                os.umask(before)
            sock.listen(1024)
        except BaseException:
            sock.close()
            raise
        return sock

    def leave(self, lock: int) -> None:
        """Listen no more: remove the socket, unless the directory is no longer that of the holder of this lock."""
        with suppress(OSError):
            if self.owner(lock) == "ours":
                self.socket.unlink()

    def is_held(self) -> bool:
        """Return whether a daemon holds the lock, whether or not it takes connections."""
        return is_held(self.lock)

    def owner(self, lock: int) -> Owner:
        """Return whose the directory is, for the daemon that holds a lock.

        Args:
            lock: The descriptor of the lock.
        """
        try:
            return "ours" if os.path.samestat(os.stat(self.lock), os.fstat(lock)) else "another's"
        except (FileNotFoundError, NotADirectoryError):
            return "gone"
        except OSError:
            return "unknown"  # it cannot be entered now

    @property
    def pid(self) -> int | None:
        """The id of the process that holds the lock, although it may not take connections; None if none does."""
        try:
            pid, lock = int(self.lock.read_text()), self.lock.stat()
            open_files = Path(f"/proc/{pid}/fd")  # the id may be that of a daemon that ended long ago
            held = self.is_held() and any(
                os.path.samestat(file.stat(), lock) for file in open_files.iterdir() if file.exists()
            )
        except (OSError, ValueError):
            return None
        return pid if held else None

    def _at(self, use: object) -> None:
        """Use the socket's address, which may be longer than the 107 bytes that there are for one."""
        assert callable(use)
        path = str(self.socket)
        if len(os.fsencode(path)) <= 100:
            use(path)
            return
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            use(f"/proc/self/fd/{directory}/{self.socket.name}")
        finally:
            os.close(directory)


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock for itself alone; not if there is no such file."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def peer(sock: socket.socket) -> int:
    """Return the user id of the process at the other end of a socket, or of the one that listens there."""
    return credentials(sock)[1]


def credentials(sock: socket.socket) -> tuple[int | None, int]:
    """Return the process id, if the system tells it, and the user id of the other end of a socket, or of the listener."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return int(pid) or None, int(uid)
    # macOS: struct xucred, in which the user id is the second integer (LOCAL_PEERCRED, sys/un.h).
    data = sock.getsockopt(0, 1, 76)
    return None, int.from_bytes(data[4:8], "little")
