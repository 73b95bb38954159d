"""The location of a user's daemon: a socket in the state directory, which no other user can reach."""

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
        socket: The socket on which the daemon listens.
        lock: The lock that the daemon holds while it lives.
        starting: The lock of the process that starts a daemon.
        log: The daemon's log file.
    """

    def __init__(self, directory: Path | None = None) -> None:
        # Resolved once: the directory may be a link, for example to another disk, and opening follows none.
        self.directory = Path(os.path.realpath(directory or config.state_directory()))
        self.socket = self.directory / "daemon.sock"
        self.lock = self.directory / "daemon.lock"
        self.starting = self.directory / "daemon.starting"
        self.log = self.directory / "daemon.log"

    def prepare(self) -> None:
        """Create the directory for this user alone, and check it.

        Raises:
            DaemonError: The directory cannot be created, or others can change it.
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
                raise DaemonError(
                    f"{self.directory} is writable by other users, who could imitate the daemon: chmod 700 {self.directory}"
                )
            self.directory.chmod(0o700)

    def unusable(self, error: OSError) -> DaemonError:
        """Return the error for a directory that is not writable."""
        why = f"{self.directory} cannot be used for the daemon: {error.strerror}"
        return DaemonError(f"{why}; CELLBLOCK_HOME can name another directory")

    def connect(self) -> socket.socket | None:
        """Connect to the daemon; return None if none is running.

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
        """Listen in place of a daemon that has ended. Only the owner of the lock calls this.

        Raises:
            DaemonError: A directory is in the socket's place.
            OSError: The system refused.
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
        """Stop listening: remove the socket, unless the directory no longer belongs to the owner of this lock."""
        with suppress(OSError):
            if self.owner(lock) == "ours":
                self.socket.unlink()

    def is_held(self) -> bool:
        """Return whether a daemon holds the lock, even if it accepts no connections."""
        return is_held(self.lock)

    def owner(self, lock: int) -> Owner:
        """Return who owns the directory, for the daemon that holds a lock.

        Args:
            lock: The descriptor of the lock.
        """
        try:
            return "ours" if os.path.samestat(os.stat(self.lock), os.fstat(lock)) else "another's"
        except (FileNotFoundError, NotADirectoryError):
            return "gone"
        except OSError:
            return "unknown"  # currently not accessible

    @property
    def pid(self) -> int | None:
        """The id of the process that holds the lock, even if it accepts no connections; None if none does."""
        try:
            pid, lock = int(self.lock.read_text()), self.lock.stat()
            open_files = Path(f"/proc/{pid}/fd")  # the id may belong to a daemon that ended long ago
            held = self.is_held() and any(
                os.path.samestat(file.stat(), lock) for file in open_files.iterdir() if file.exists()
            )
        except (OSError, ValueError):
            return None
        return pid if held else None

    def _at(self, use: object) -> None:
        """Call a function with the socket's address, even if the path exceeds the 107 bytes of an address."""
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
    """Return whether a process holds an exclusive lock on a file; False if the file is missing."""
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
    """Return the user id of the peer of a socket, or of its listener."""
    return credentials(sock)[1]


def credentials(sock: socket.socket) -> tuple[int | None, int]:
    """Return the process id (if available) and the user id of the peer of a socket, or of its listener."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return int(pid) or None, int(uid)
    # macOS: struct xucred, in which the user id is the second integer (LOCAL_PEERCRED, sys/un.h).
    data = sock.getsockopt(0, 1, 76)
    return None, int.from_bytes(data[4:8], "little")
