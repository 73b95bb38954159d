"""Removes the directories that a host keeps for its sessions, even if the host was killed.

Standard library only, and trusted processes only. Sessions wrote the contents: no link is
followed, and neither depth nor file modes prevent removal.
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
"""Seconds that a host may take to end after its connections have: a program closes them before it is gone."""

_LOOK_AGAIN = 0.05
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSES = 3  # a session that is being ended at this moment may still write


def find_places(beginning: str) -> list[str]:
    """Return the paths that begin in this way.

    Args:
        beginning: A directory that exists, and what names in it begin with.
    """
    parent, _, name = beginning.rpartition("/")
    try:
        return [os.path.join(parent, found) for found in os.listdir(parent or "/") if found.startswith(name)]
    except OSError:
        return []  # not to be seen from here


def remove_places(beginning: str) -> None:
    """Remove everything whose path begins in this way."""
    for place in find_places(beginning):
        remove_place(place)


def make_place(place: str) -> int:
    """Make a directory that nobody takes for abandoned while the descriptor that is returned is open.

    Raises:
        OSError: It cannot be made; or it exists, and is somebody else's.
    """
    while True:
        os.mkdir(place, 0o700)
        try:
            held = os.open(place, _DIRECTORY)
        except FileNotFoundError:
            continue  # taken for abandoned, as it is by others before we hold it
        try:
            fcntl.flock(held, fcntl.LOCK_SH)  # waits only for `remove_abandoned`, which finds it empty
        except OSError:
            return held  # a file system without locks: nobody else gets one, either, and nothing is taken for abandoned
        try:
            if os.path.samestat(os.lstat(place), os.fstat(held)):
                return held
        except FileNotFoundError:
            pass  # likewise
        os.close(held)


def remove_abandoned(place: str, before: Callable[[], object] = lambda: None) -> None:
    """Remove a directory of this user's as `remove_place`, unless the host that has made it still holds it.

    If it is removed, `before` is called first.

    What holds it is a lock and not a process that lives: where containers share a /tmp, processes of others are not to be
    seen, and everywhere their numbers are given again.
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
        pass  # somebody has it
    finally:
        os.close(top)


def remove_after(host: int | None, beginning: str | None, connection: int | None = None) -> None:
    """As a process that outlives its host: remove what is the host's, if that has ended. A living host does it itself.

    Args:
        host: A pidfd of the host; None if there are none, and then nothing is removed.
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
    """Remove a directory and what is in it, as far as this user may.

    Args:
        place: The directory.
        identity: Its device and inode, to leave alone whatever else stands there. Needed if a session can write to its parent.
    """
    try:
        top = os.open(place, _DIRECTORY)
    except OSError:
        return  # it is gone, or somebody else's
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
                return  # somebody else does the same
        except OSError:
            continue


def empty(top: int) -> None:
    """Remove what is in a directory. All directories are brought to its top, one after the other, and emptied there.

    So two descriptors do for any depth, and no path is ever walked that somebody could change meanwhile.
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
                # Where it leads upwards is written in the directory itself, so that its own mode matters as well.
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
    """Remove everything but directories from a directory; return the names of these."""
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
    """Open a directory and make it ours to write, whatever its mode; None if it is not a directory any more."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        held = os.open(name, getattr(os, "O_PATH", os.O_RDONLY) | flags, dir_fd=parent)
    except FileNotFoundError:
        return None
    try:
        if hasattr(os, "O_PATH"):
            os.chmod(f"/proc/self/fd/{held}", stat.S_IRWXU)  # by this name no other file can be meant
        return os.open(".", os.O_RDONLY | flags, dir_fd=held)
    finally:
        os.close(held)


def _hung_up(connection: int) -> bool:
    poll = select.poll()
    poll.register(connection, 0)  # POLLHUP comes without being asked for
    return bool(poll.poll(0))
