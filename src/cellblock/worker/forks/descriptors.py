"""Descriptors that a fork shares with its original: file locks, and connections for one process."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import select
import stat
import struct
import sys
from asyncio import events
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cellblock.wire.copies import REPLACED
from cellblock.worker.forks.pools import instances
from cellblock.worker.forks.sockets import part_sockets, replace_descriptor, sockets_of, unread, waking_sockets
from cellblock.worker.loop import renew_wakeup

_FLOCK = struct.Struct("hhqqi4x")
_SQLITE = b"SQLite format 3\0"
_SHARED_LOCK = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0x40000002, 510, 0)
"""SQLite's lock on a database for reading."""

_EPOLL_EVENT = struct.Struct("=IQ" if os.uname().machine == "x86_64" else "@IQ")
_WATCHED = re.compile(r"tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)\s+data:\s*([0-9a-f]+)")
_OWN_LOCK = re.compile(r"^lock:\s+\d+: POSIX\s+\w+\s+WRITE", re.MULTILINE)
_WHOLE_LOCK = re.compile(r"^lock:\s+\d+: FLOCK\s+\w+\s+WRITE", re.MULTILINE)
_TRACKERS = (
    "multiprocessing.resource_tracker",
    "joblib.externals.loky.backend.resource_tracker",
    "loky.backend.resource_tracker",
)
_OF_PROCESSES = ("pidfd:", "anon_inode:[pidfd]")
_EVENTS = "anon_inode:[eventfd]"
_COUNT = re.compile(r"^eventfd-count:\s*([0-9a-f]+)", re.MULTILINE)
_ID = re.compile(r"^eventfd-id:\s*(\d+)", re.MULTILINE)
_SEMAPHORE = re.compile(r"^eventfd-semaphore:\s*1", re.MULTILINE)  # since Linux 6.9
_KIND = re.compile(r"anon_inode:\[?(timerfd|inotify|signalfd|fanotify|io_uring)\]?")
"""Descriptors that only one process can use, and that cannot be opened again."""

_GUESSED = 1024
_ONCE = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW | (os.O_TMPFILE & ~os.O_DIRECTORY)
"""Flags that are for the first opening of a file."""

_DELETED = " (deleted)"
_CTL_ADD = 1
_LONG = 300
"""Maximum length of a name to show."""


@dataclass(frozen=True)
class Moved:
    """The locations of a copy's open files in a kernel created from it.

    Attributes:
        before: The directory of the copied session.
        now: The directory of this session, which differs for a branch with its own files.
    """

    before: str = ""
    now: str = ""

    def path(self, path: str) -> str:
        """Return the current path of a file."""
        within = self.before != self.now and f"{path}/".startswith(f"{self.before}/")
        return self.now + path[len(self.before) :] if within else path

    def replaced(self, opened: str) -> str:
        """Return a name for a file that was replaced; empty if it was not.

        Args:
            opened: Its current path in /proc.
        """
        if opened.endswith(_DELETED):
            return f"The file {opened.removesuffix(_DELETED)}"
        if f"/{REPLACED}" in opened:
            return "A file"
        return f"The file {opened}" if self.path(opened) != opened else ""

    def instead(self, opened: str, path: str) -> str:
        """Return the path of the file that a descriptor should refer to; empty for its current file.

        A restore replaces changed files. While a kernel is created, the old ones still exist, in a folder of the workspace.

        Args:
            opened: The current path of its file in /proc.
            path: That path when the process was copied.
        """
        if not path.startswith("/") or path.endswith(_DELETED):
            return ""
        if (there := self.path(path)) != path:
            return there
        return path if opened.endswith(_DELETED) or f"/{REPLACED}" in opened else ""


@dataclass(frozen=True)
class Descriptors:
    """The open descriptors of a process.

    Attributes:
        paths: The descriptors, with the targets of their links in /proc.
        watched: The interest list of each epoll object: descriptor, events and data.
        nameless: For unnamed files, their modification time and size when they were examined for a copy.
        counts: Of each eventfd object: its count, whether it is a semaphore, and its id, which duplicates share.
    """

    paths: dict[int, str] = field(default_factory=dict)
    watched: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    nameless: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts: dict[int, tuple[int, bool, int]] = field(default_factory=dict)

    @classmethod
    def now(cls) -> Descriptors:
        """Return the open descriptors of this process.

        A fork in a Landlock sandbox has no /proc/self, so its descriptors are probed, and nothing else is known about them.
        """
        found = cls()
        try:
            names = os.listdir("/proc/self/fd")
        except OSError:
            return cls({descriptor: _path_of(descriptor) for descriptor in range(_GUESSED) if _is_open(descriptor)})
        for descriptor in map(int, names):
            try:
                path = found.paths[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
                if path == "anon_inode:[eventpoll]":
                    watched = _WATCHED.findall(_information(descriptor))
                    found.watched[descriptor] = [(int(a), int(b, 16), int(c, 16)) for a, b, c in watched]
                elif path == _EVENTS:
                    information = _information(descriptor)
                    count, number = _COUNT.search(information), _ID.search(information)
                    same = int(number[1]) if number else -1 - descriptor
                    found.counts[descriptor] = int(count[1], 16) if count else 0, bool(_SEMAPHORE.search(information)), same
            except OSError:  # the one used for listing them
                continue
        return found

    def to_part(self, above: int) -> Descriptors:
        """Return those that copies must check for sharing: not the wakeup sockets of event loops, which they renew anyway.

        Call it before a fork, because in the copy, finding the loops costs as much as all the rest. Finding all of them means
        visiting every object, which is not needed if all sockets belong to the running loop.

        Args:
            above: The highest of the descriptors that the caller handles.
        """
        waking = sockets_of(events._get_running_loop())  # noqa: SLF001  # the only way that does not raise if it is missing
        sockets = {one for one, path in self.paths.items() if one > above and (not path or path.startswith("socket:"))}
        if not sockets <= waking:
            waking = waking_sockets()
        same = {path for descriptor in waking if (path := self.paths.get(descriptor))}
        others = {one: path for one, path in self.paths.items() if one not in waking and path not in same}
        nameless = {one: _last_written(os.fstat(one)) for one, path in others.items() if path.endswith(_DELETED)}
        return Descriptors(others, self.watched, nameless, self.counts)


def _last_written(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _path_of(descriptor: int) -> str:
    """Return the target of a descriptor's link in /proc; empty if it cannot be read."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _information(descriptor: int) -> str:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="utf-8") as file:
        return file.read()


def locked_file(seen: Descriptors) -> tuple[int, str] | None:
    """Return a file on which this process has a write lock, which a fork would not have: its descriptor and its path.

    Databases lock their files: SQLite during a transaction that writes, DuckDB and HDF5 for as long as the file is open.

    Args:
        seen: The open descriptors of this process.
    """
    query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    for descriptor, path in seen.paths.items():
        with contextlib.suppress(OSError):  # closed meanwhile, or without locks
            # Locks of open file descriptions conflict with locks of processes, even with this one's.
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query)
            if _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK and _is_own(descriptor):
                return descriptor, path or f"with descriptor {descriptor}"
            # A copy shares flock() locks until it reopens its files.
            if path.startswith("/") and not path.startswith("/dev/") and _WHOLE_LOCK.search(_information(descriptor)):
                return descriptor, path
    return None


def _is_own(descriptor: int) -> bool:
    """Return whether the lock on a file is this process's own, which is assumed if unknown."""
    try:
        return _OWN_LOCK.search(_information(descriptor)) is not None
    except OSError:
        return True


def is_sqlite(descriptor: int, path: str, seen: Descriptors) -> bool:
    """Return whether a file belongs to an SQLite database.

    Files are read through existing descriptors: closing any descriptor of a file releases all of this process's locks on it,
    and with them the protection of the transaction.

    Args:
        descriptor: A descriptor of the file.
        path: Its path.
        seen: The open descriptors of this process.
    """
    database = re.sub(r"-(shm|wal|journal)$", "", path)
    for candidate in (descriptor, *(other for other, name in seen.paths.items() if name == database)):
        with contextlib.suppress(OSError):
            if os.pread(candidate, len(_SQLITE), 0) == _SQLITE:
                return True
    return False


def separate(seen: Descriptors, above: int, moved: Moved | None = None) -> list[str]:
    """Stop sharing descriptors that only one process may use, in a copy.

    Files get their own position. Connections and pipes to other processes look closed by the other side, so that clients with
    connection pools reconnect. Objects within this process are replaced by new ones of their kind.

    Args:
        seen: The original's descriptors to check.
        above: The highest of the descriptors that the caller handles.
        moved: The locations of files, in a kernel; None in a waiting copy, whose files may still be replaced.

    Returns:
        The lost connections and files, described in sentences.
    """
    looked_at = [(descriptor, path) for descriptor, path in seen.paths.items() if descriptor > above]
    if not looked_at:
        return []
    pipes: dict[tuple[int, int], dict[int, int]] = {}
    sockets: dict[int, int] = {}
    kept, told = _of_trackers(), []
    renewed: dict[int, int] = {}
    for descriptor, path in looked_at:
        if descriptor in kept:
            continue
        with contextlib.suppress(OSError):  # closed meanwhile; or a file that may not be reopened, which stays shared
            status = os.fstat(descriptor)
            if path.startswith(_OF_PROCESSES):
                _silence(descriptor)
            elif (kind := _KIND.fullmatch(path)) is not None:
                _silence(descriptor)
                told.append(f"Descriptor {descriptor} of {kind[1]} was closed: open it again.")
            elif descriptor in seen.counts and path == _EVENTS:
                count, semaphore, same = seen.counts[descriptor]
                if same in renewed:
                    replace_descriptor(descriptor, renewed[same])
                else:
                    _renew_events(descriptor, count, semaphore)
                    renewed[same] = descriptor
            elif stat.S_ISSOCK(status.st_mode):
                sockets[descriptor] = status.st_ino
            elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                told += _reopen(descriptor, path, status, seen.nameless.get(descriptor), moved)
            elif stat.S_ISFIFO(status.st_mode):
                way = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
                pipes.setdefault((status.st_dev, status.st_ino), {})[descriptor] = way
    told += part_sockets(sockets)
    told += [sentence for ends in pipes.values() if (sentence := _renew_pipe(ends))]
    if seen.watched:
        _renew_loops()
    for epoll, targets in seen.watched.items():
        with contextlib.suppress(OSError):
            _renew_epoll(epoll, targets)
    return told


def _silence(descriptor: int) -> None:
    """Replace a descriptor by one that never becomes readable."""
    silent = os.eventfd(0)
    try:
        replace_descriptor(descriptor, silent)
    finally:
        os.close(silent)


def _renew_events(descriptor: int, count: int, semaphore: bool) -> None:
    """Replace an eventfd object by one with the same count."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_NONBLOCK
    fresh = os.eventfd(0, flags | os.EFD_CLOEXEC | (os.EFD_SEMAPHORE if semaphore else 0))
    try:
        if count:
            os.eventfd_write(fresh, count)
        replace_descriptor(descriptor, fresh)
    finally:
        os.close(fresh)


def _of_trackers() -> set[int]:
    """Return the pipes to the resource trackers of multiprocessing, which serve copies as well."""
    found = {getattr(getattr(sys.modules.get(name), "_resource_tracker", None), "_fd", None) for name in _TRACKERS}
    return {descriptor for descriptor in found if isinstance(descriptor, int)}


def _reopen(
    descriptor: int, path: str, status: os.stat_result, nameless: tuple[int, int] | None, moved: Moved | None
) -> list[str]:
    """Open a file or a directory again, or its replacement.

    Args:
        descriptor: Its descriptor.
        path: Its path when the process was copied; empty if unknown.
        status: Its status.
        nameless: For an unnamed file, its entry in `Descriptors.nameless`.
        moved: As for `separate`.

    Returns:
        What was lost, in a sentence.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~_ONCE | os.O_CLOEXEC
    regular, told = stat.S_ISREG(status.st_mode), []
    if moved is not None and path:
        instead = moved.instead(os.readlink(f"/proc/self/fd/{descriptor}"), path)
        try:
            with contextlib.suppress(FileNotFoundError):  # it is unchanged, as if no file had been restored
                if instead and _open_in_place(descriptor, instead, flags, status):
                    return []
        except OSError as error:
            return [f"The open file {shown(instead)} was replaced, and cannot be opened again: {error.strerror}."]
        if regular and nameless is not None and not status.st_nlink and _last_written(status) != nameless:
            told = [f"The open file {shown(path.removesuffix(_DELETED))} has no name, so later writes to it were not undone."]
    elif moved is not None and regular:
        told = [f"The open file with descriptor {descriptor} may have been replaced: open it again."]
    if regular:
        try:
            new = os.open(f"/proc/self/fd/{descriptor}", flags & ~os.O_DIRECTORY)
        except OSError:
            new = os.open(path, flags | os.O_NOFOLLOW)
        _put(descriptor, new, status)
    return told


def _open_in_place(descriptor: int, path: str, flags: int, status: os.stat_result) -> bool:
    """Open another file of the same kind in place of an open one. Return whether that is possible.

    Raises:
        OSError: It cannot be opened.
    """
    new = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(new)
    if stat.S_IFMT(found.st_mode) != stat.S_IFMT(status.st_mode):
        os.close(new)
        return False
    if not flags & os.O_NONBLOCK and not flags & os.O_PATH:
        os.set_blocking(new, True)
    _put(descriptor, new, found)
    return True


def _put(descriptor: int, new: int, status: os.stat_result) -> None:
    """Put a new descriptor in place of another one, at the same position, if it refers to the expected file."""
    try:
        if os.path.samestat(os.fstat(new), status):
            if stat.S_ISREG(status.st_mode) and not fcntl.fcntl(new, fcntl.F_GETFL) & os.O_PATH:
                os.lseek(new, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            replace_descriptor(descriptor, new)
    finally:
        os.close(new)


def _renew_pipe(ends: dict[int, int]) -> str | None:
    """Replace a pipe, given its descriptors here and whether they read or write. Return a sentence about lost data.

    Data in the old pipe could only be read by taking it from the original.
    """
    held = 0
    reader, writer = os.pipe()
    try:
        for descriptor, way in ends.items():
            if not way:
                held = unread(descriptor)
            os.set_blocking(writer if way else reader, os.get_blocking(descriptor))
            replace_descriptor(descriptor, writer if way else reader)
    finally:
        os.close(reader)
        os.close(writer)
    if held and len(ends) > 1:
        return f"A pipe or multiprocessing queue lost {held:,} unread bytes: send them again."
    return None


def _renew_loops() -> None:
    """Renew the wakeup sockets of event loops that code has created, which wait with epoll objects."""
    asyncio: Any = sys.modules["asyncio"]
    for loop in instances(asyncio.SelectorEventLoop):
        if not loop.is_closed():
            renew_wakeup(loop)


def _renew_epoll(epoll: int, watched: list[tuple[int, int, int]]) -> None:
    """Replace a shared epoll object: what a copy watched with it would wake the original."""
    add = ctypes.CDLL(None).epoll_ctl
    with select.epoll() as fresh:
        for descriptor, events, data in watched:
            add(fresh.fileno(), _CTL_ADD, descriptor, _EPOLL_EVENT.pack(events, data))  # fails for closed descriptors
        replace_descriptor(epoll, fresh.fileno())


def reopen_databases(seen: Descriptors, moved: Moved) -> list[str]:
    """Reopen SQLite's files in a copy, and describe what the new connections lack.

    SQLite does not support connections across a fork: their view of the locks on the file is wrong in the copy.

    Args:
        seen: The original's descriptors.
        moved: The locations of files.
    """
    sqlite = sys.modules.get("sqlite3")
    if sqlite is None or not _has_database(seen):
        return []
    told = []
    for connection in instances(sqlite.Connection):
        try:
            if sentence := _open_again(connection, moved):
                told.append(sentence)
        except sqlite.Error as error:
            told.append(f"An SQLite database could not be opened again: {error}")
    return told


def _has_database(seen: Descriptors) -> bool:
    for descriptor in seen.paths:
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and os.pread(descriptor, len(_SQLITE), 0) in (_SQLITE, b""):
                return True
    return False


def _open_again(connection: Any, moved: Moved) -> str | None:
    sqlite: Any = sys.modules["sqlite3"]
    kept = {name: getattr(connection, name) for name in ("isolation_level", "row_factory", "text_factory")}
    connection.row_factory = None
    attached = {name: path for _, name, path in sqlite.Connection.execute(connection, "PRAGMA database_list")}
    path = attached.pop("main", "")
    if not path:
        connection.row_factory = kept["row_factory"]
        return None  # it is in memory, and so it was copied
    functions, path = _functions(connection), moved.path(path)
    if not os.path.exists(path):
        connection.close()
        return f"The SQLite database {path} was removed: its connection is closed."
    with _locked([path, *map(moved.path, filter(None, attached.values()))]):
        sqlite.Connection.__init__(connection, path, isolation_level=kept["isolation_level"])
    for name, value in kept.items():
        setattr(connection, name, value)
    lost = [
        *(["its attached databases and temporary tables"] if attached else []),
        *(["your functions"] if functions > _functions(connection) else []),
    ]
    return f"The SQLite database {path} was opened again, without {' and '.join(lost)}." if lost else None


@contextlib.contextmanager
def _locked(databases: Iterable[str]) -> Iterator[None]:
    """Lock SQLite databases for reading, so that closing their last connection does not write a write-ahead log into them.

    An undo has just restored these files, and a redo would take the change for another program's.
    """
    with contextlib.ExitStack() as stack:
        for path in databases:
            with contextlib.suppress(OSError):
                held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, held)
                fcntl.fcntl(held, fcntl.F_OFD_SETLK, _SHARED_LOCK)
        yield


def _functions(connection: Any) -> set[str]:
    sqlite: Any = sys.modules["sqlite3"]
    # A SELECT would read the database, and so change the index of its write-ahead log.
    return {name for name, *_ in sqlite.Connection.execute(connection, "PRAGMA function_list")}


def shown(name: str) -> str:
    """Return a name chosen by the code, safe for a message."""
    name = name if len(name) <= _LONG else f"{name[: _LONG // 2]}…{name[-_LONG // 2 :]}"
    return name if name.isprintable() else ascii(name)[1:-1]
