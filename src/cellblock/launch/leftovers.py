"""Removes the directories that a host creates for its sessions, even if the host was killed.

Standard library only, and trusted processes only. Sessions wrote the contents: no link is followed, and neither depth nor file
modes prevent removal.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import select
import stat
import time
from collections.abc import Callable

_PATIENCE = 10.0
"""Seconds that a host may take to end after its connections have: a program closes them before it has ended."""

_LOOK_AGAIN = 0.05
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSES = 3  # a session that is being ended may still write


def find_places(beginning: str) -> list[str]:
    """Return the paths with a prefix.

    Args:
        beginning: An existing directory, and the prefix of names in it.
    """
    parent, _, name = beginning.rpartition("/")
    try:
        return [os.path.join(parent, found) for found in os.listdir(parent or "/") if found.startswith(name)]
    except OSError:
        return []  # not visible from here


def remove_places(beginning: str) -> None:
    """Remove everything whose path has a prefix."""
    for place in find_places(beginning):
        remove_place(place)


def make_place(place: str) -> int:
    """Create a directory that counts as in use while the returned descriptor is open.

    Raises:
        OSError: It cannot be created, or it exists and has another owner.
    """
    while True:
        os.mkdir(place, 0o700)
        try:
            held = os.open(place, _DIRECTORY)
        except FileNotFoundError:
            continue  # another process removed it as abandoned before we held it
        try:
            fcntl.flock(held, fcntl.LOCK_SH)  # waits only for `remove_abandoned`, which finds it empty
        except OSError:
            return held  # a file system without locks: no process gets one, and nothing counts as abandoned
        try:
            if os.path.samestat(os.lstat(place), os.fstat(held)):
                return held
        except FileNotFoundError:
            pass  # likewise
        os.close(held)


def remove_abandoned(place: str, before: Callable[[], object] = lambda: None) -> None:
    """Remove a directory of this user like `remove_place`, unless its creator still holds it.

    If it is removed, `before` is called first.

    The criterion is a lock, not a live process: where containers share a /tmp, other containers' processes are invisible, and
    pids are reused everywhere.
    """
    try:
        top = os.open(place, _DIRECTORY)
    except OSError:
        return
    try:
        if os.fstat(top).st_uid == os.geteuid():
            fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before()
            _remove(place, top)
    except OSError:
        pass  # it is in use
    finally:
        os.close(top)


def remove_after(host: int | None, beginning: str | None, connection: int | None = None) -> None:
    """Remove the host's paths if the host has ended, as a process that outlives it. A living host does it itself.

    Args:
        host: A pidfd of the host; with None, nothing is removed.
        beginning: As `find_places`; None for nothing.
        connection: A socket to the host. If its other end is closed, the host may be about to end, and is waited for.
    """
    if host is None or beginning is None:
        return
    poll = select.poll()
    poll.register(host, select.POLLIN)
    deadline = time.monotonic() + (_PATIENCE if connection is not None and _hung_up(connection) else 0.0)
    while find_places(beginning):
        if poll.poll(_LOOK_AGAIN * 1000 if time.monotonic() < deadline else 0):
            remove_places(beginning)
            return
        if time.monotonic() >= deadline:
            return


def remove_place(place: str, identity: tuple[int, int] | None = None) -> None:
    """Remove a directory and its contents, as far as this user may.

    Args:
        place: The directory.
        identity: Its device and inode. Anything else at this path is left alone. Needed if a session can write to its parent.
    """
    try:
        top = os.open(place, _DIRECTORY)
    except OSError:
        return  # it was removed, or has another owner
    try:
        if identity is None or _is(top, identity):
            _remove(place, top)
    finally:
        os.close(top)


def _is(top: int, identity: tuple[int, int]) -> bool:
    info = os.fstat(top)
    return (info.st_dev, info.st_ino) == identity


def _remove(place: str, top: int) -> None:
    for _ in range(_PASSES):
        try:
            empty(top)
            os.rmdir(place)
            return
        except FileNotFoundError:
            if not os.path.lexists(place):
                return  # another process does the same
        except OSError:
            continue


def empty(top: int) -> None:
    """Remove the contents of a directory. Each subdirectory is moved to the top and emptied there.

    So two descriptors suffice for any depth, and no path is used that could change meanwhile.
    """
    token = secrets.token_hex(8)
    numbers = itertools.count()
    pending = _remove_files(top)
    while pending:
        name = pending.pop()
        directory = open_ours(name, top)
        if directory is None:
            continue
        try:
            for inner in _remove_files(directory):
                # The entry ".." is in the directory itself, so that its own mode matters as well.
                if (opened := open_ours(inner, directory)) is None:
                    continue
                os.close(opened)
                moved = f"{token}-{next(numbers)}"
                os.rename(inner, moved, src_dir_fd=directory, dst_dir_fd=top)
                pending.append(moved)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=top)


def _remove_files(directory: int) -> list[str]:
    """Remove everything but directories from a directory. Return the names of the directories."""
    os.fchmod(directory, stat.S_IRWXU)
    found = []
    with os.scandir(directory) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in names:
        if is_directory:
            found.append(name)
        else:
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                continue
    return found


def open_ours(name: str, parent: int) -> int | None:
    """Open a directory and make it writable for us, regardless of its mode; None if it is no longer a directory."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        held = os.open(name, getattr(os, "O_PATH", os.O_RDONLY) | flags, dir_fd=parent)
    except FileNotFoundError:
        return None
    try:
        if hasattr(os, "O_PATH"):
            os.chmod(f"/proc/self/fd/{held}", stat.S_IRWXU)  # this path refers to the open directory only
        return os.open(".", os.O_RDONLY | flags, dir_fd=held)
    finally:
        os.close(held)


def _hung_up(connection: int) -> bool:
    poll = select.poll()
    poll.register(connection, 0)  # POLLHUP needs no request
    return bool(poll.poll(0))
