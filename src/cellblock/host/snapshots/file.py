"""The record of a regular file, packed as bytes, and of a link."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple, TypeAlias

PERMISSIONS = 0o1777
"""The mode bits that are kept. A restored file never has a set-user-ID bit that code in a session has set."""

Owner: TypeAlias = tuple[int, int]
"""The ids of a user and a group."""

File: TypeAlias = bytes
"""A regular file, packed by `pack`.

Python's garbage collector visits every object except strings and numbers. A workspace can have 100,000 files, and while the
collector visits an object for each, no other thread can run, not even the event loop's.
"""

_FACTS = struct.Struct(
    "=qIqIII"
)  # times in seconds and nanoseconds: a number of 64 bits ends in the year 2262, and files do not
_SIZE = struct.Struct("=q")
_SEEN = struct.Struct("=QQQqI")
_64_BITS = 2**64 - 1
_SECOND = 10**9
_DIGEST = _FACTS.size + _SEEN.size
UNSEEN = bytes(_SEEN.size)
_DOUBTED, _UNSETTLED = 1 << 31, 1 << 30  # no mode has them


class Facts(NamedTuple):
    """The record of a regular file.

    Attributes:
        size: Its size in bytes.
        mode: Its permissions.
        mtime_ns: Its modification time.
        owner: Its owner.
        digest: The digest of its content, its key in the store; empty if the content was not kept.
    """

    size: int
    mode: int
    mtime_ns: int
    owner: Owner
    digest: bytes


def pack(info: os.stat_result, digest: bytes, size: int, seen: bytes) -> File:
    """Pack the record of a regular file.

    Args:
        info: Its status.
        digest: The digest of its content, its key in the store; empty if the content was not read.
        size: How many bytes were read, or would have been.
        seen: The status to compare with the next time (`seen`); `UNSEEN` if the file must be read again.
    """
    seconds, rest = divmod(info.st_mtime_ns, _SECOND)
    return _FACTS.pack(size, info.st_mode & PERMISSIONS, seconds, rest, info.st_uid, info.st_gid) + seen + digest


def facts(file: File) -> Facts:
    """Unpack the record of a regular file."""
    size, mode, seconds, rest, user, group = _FACTS.unpack_from(file)
    return Facts(size, mode, seconds * _SECOND + rest, (user, group), file[_DIGEST:])


def seen(info: os.stat_result) -> bytes:
    """Return the relevant status of a file: while it is unchanged, so is the content."""
    return _pack_status(info, info.st_mode)


def doubted(info: os.stat_result) -> bytes:
    """Return the status of a file whose content can change without it: the file must be read again."""
    return _pack_status(info, info.st_mode | _DOUBTED)


def unsettled(info: os.stat_result) -> bytes:
    """Return the status of a file that may have changed since without another status: the file must be read again."""
    return _pack_status(info, info.st_mode | _UNSETTLED)


def _pack_status(info: os.stat_result, mode: int) -> bytes:
    return _SEEN.pack(info.st_ino, info.st_ctime_ns & _64_BITS, info.st_mtime_ns & _64_BITS, info.st_size, mode)


def was_seen(file: File, now: bytes) -> bool:
    """Whether a file's status was the same when it was read."""
    return file[_FACTS.size : _DIGEST] == now


def kept_as(file: File) -> bytes:
    """Return the digest of a file's content; empty if the content was not kept."""
    return file[_DIGEST:]


def is_kept(file: File) -> bool:
    """Whether the content of a file was kept. Otherwise only its status is known."""
    return len(file) > _DIGEST


def is_seen(file: File) -> bool:
    """Whether a file's status at the time of reading is known."""
    return not file.startswith(UNSEEN, _FACTS.size)


def changed_at(status: bytes) -> int:
    """Return when a file was last changed (ctime) that has a status (`seen`)."""
    time: int = _SEEN.unpack(status)[1]
    return time


def changed_by(file: File) -> int:
    """Return when a file was last changed (ctime); 0 if its content can change without that."""
    _, changed, *_, mode = _SEEN.unpack_from(file, _FACTS.size)
    return 0 if mode & _DOUBTED else int(changed)


def seen_as(file: File) -> bytes | None:
    """Return the status (`seen`) that a file had when it was read; None if that was not noted."""
    if not is_seen(file):
        return None
    *rest, mode = _SEEN.unpack_from(file, _FACTS.size)
    return _SEEN.pack(*rest, mode & ~(_DOUBTED | _UNSETTLED))


def size_of(file: File) -> int:
    """Return the size of a file in bytes."""
    size: int = _SIZE.unpack_from(file)[0]
    return size


class Link(NamedTuple):
    """A symbolic link.

    Attributes:
        target: Where it leads to.
        owner: Its owner.
        status: Its status (`seen`); `UNSEEN` if that was not noted.
    """

    target: str
    owner: Owner
    status: bytes = UNSEEN
