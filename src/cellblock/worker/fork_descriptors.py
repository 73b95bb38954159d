"""Descriptors that a fork shares with its original: locks that it would not have, and connections that only one may use."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from typing import Any

from cellblock.worker.fork_pools import instances

_FLOCK = struct.Struct("hhqqi4x")
_SQLITE = b"SQLite format 3\0"
_EPOLL_EVENT = struct.Struct("=IQ" if os.uname().machine == "x86_64" else "@IQ")
_WATCHED = re.compile(r"tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)\s+data:\s*([0-9a-f]+)")
_OWN_LOCK = re.compile(r"^lock:\s+\d+: POSIX\s+\w+\s+WRITE", re.MULTILINE)
_CTL_ADD = 1


def locked_file() -> str | None:
    """Return the path of a file on which this process has a lock for writing, which a fork would not have.

    Databases lock their file so: SQLite during a transaction that writes, DuckDB for as long as the file is open.
    """
    query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    for descriptor in _descriptors():
        try:
            # Locks of open file descriptions conflict with those of processes, even with those of this one.
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query)
            if _FLOCK.unpack(answer)[0] == fcntl.F_UNLCK or not _is_ours(descriptor):
                continue
            return os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # closed meanwhile, or something that knows no locks
    return None


def _is_ours(descriptor: int) -> bool:
    """Whether the lock is this process's own: of files that it only opened, others may have locks."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as info:
        return _OWN_LOCK.search(info.read()) is not None


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def is_sqlite(path: str) -> bool:
    """Whether a file belongs to an SQLite database."""
    try:
        with open(re.sub(r"-(shm|wal|journal)$", "", path), "rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def cut_connections() -> list[str]:
    """In a copy: put dead sockets in place of those of the original, and tell which.

    Both would read from the same connection otherwise, and each would get a part. A dead socket is one that the other side
    has closed: clients that keep connections open make new ones then. Pairs of sockets within a session stay.
    """
    told = []
    for descriptor in _descriptors():
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            if sentence := _cut(descriptor):
                told.append(sentence)
        except OSError:
            continue  # closed, or a kind that has no names
    return told


def _cut(descriptor: int) -> str | None:
    shared = socket.socket(fileno=descriptor)
    try:
        here, there = shared.getsockname(), _peer(shared)
        named = here if shared.family in (socket.AF_INET, socket.AF_INET6) else here or there
        listens = bool(shared.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if not named or shared.type not in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            return None
        with _dead(shared, listens) as dead:
            dead.setblocking(os.get_blocking(descriptor))
            os.dup2(dead.fileno(), descriptor, inheritable=os.get_inheritable(descriptor))
    finally:
        shared.detach()
    if listens:
        return f"Nothing listens on {_address(here)} here: start the server again."
    return f"The connection to {_address(there)} was closed here." if there else None


def _peer(shared: socket.socket) -> Any:
    try:
        return shared.getpeername()
    except OSError:
        return None


def _dead(shared: socket.socket, listens: bool) -> socket.socket:
    if shared.type == socket.SOCK_DGRAM:
        return socket.socket(shared.family, shared.type)
    if listens:  # to nobody: code that waits for a connection goes on waiting
        deaf = socket.socket(socket.AF_UNIX)
        deaf.bind("")
        deaf.listen(1)
        return deaf
    near, far = socket.socketpair()
    far.close()
    return near


def _address(name: Any) -> str:
    if isinstance(name, tuple):
        return f"{name[0]}:{name[1]}"
    return repr(os.fsdecode(name))


def renew_epolls() -> None:
    """In a copy: make its epoll objects its own. What it watched with a shared one would wake the original."""
    libc = ctypes.CDLL(None)
    for descriptor in _descriptors():
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") != "anon_inode:[eventpoll]":
                continue
            with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as info:
                watched = _WATCHED.findall(info.read())
            with select.epoll() as fresh:
                for target, events, data in watched:
                    event = _EPOLL_EVENT.pack(int(events, 16), int(data, 16))
                    libc.epoll_ctl(fresh.fileno(), _CTL_ADD, int(target), event)  # fails for what is closed here
                os.dup2(fresh.fileno(), descriptor, inheritable=os.get_inheritable(descriptor))
        except OSError:
            continue


def reopen_databases() -> list[str]:
    """In a copy: open SQLite's files again, and tell what the new connections lack.

    SQLite does not support connections that went through a fork: what it believes of the locks on the file is not true there.
    """
    sqlite = sys.modules.get("sqlite3")
    if sqlite is None or not any(_open_databases()):
        return []
    told = []
    for connection in instances(sqlite.Connection):
        try:
            if sentence := _reopen(connection):
                told.append(sentence)
        except sqlite.Error as error:
            told.append(f"An SQLite database could not be opened again: {error}")
    return told


def _open_databases() -> Iterator[str]:
    for descriptor in _descriptors():
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                path = os.readlink(f"/proc/self/fd/{descriptor}")
                if os.pread(descriptor, len(_SQLITE), 0) in (_SQLITE, b""):
                    yield path
        except OSError:
            continue


def _reopen(connection: Any) -> str | None:
    sqlite: Any = sys.modules["sqlite3"]
    kept = {name: getattr(connection, name) for name in ("isolation_level", "row_factory", "text_factory")}
    connection.row_factory = None
    attached = {name: path for _, name, path in sqlite.Connection.execute(connection, "PRAGMA database_list")}
    path = attached.pop("main", "")
    if not path:
        connection.row_factory = kept["row_factory"]
        return None  # it is in memory, and so it came along
    functions = _functions(connection)
    if not os.path.exists(path):
        connection.close()
        return f"The SQLite database {path} is gone: its connection is closed."
    sqlite.Connection.__init__(connection, path, isolation_level=kept["isolation_level"])
    for name, value in kept.items():
        setattr(connection, name, value)
    lost = [
        *(["the databases and temporary tables beside it"] if attached else []),
        *(["your functions"] if functions > _functions(connection) else []),
    ]
    return f"The SQLite database {path} was opened again, without {' and '.join(lost)}." if lost else None


def _functions(connection: Any) -> set[str]:
    sqlite: Any = sys.modules["sqlite3"]
    return {name for name, in sqlite.Connection.execute(connection, "SELECT name FROM pragma_function_list")}
