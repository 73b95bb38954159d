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
)  # times in seconds and nanoseconds: 64-bit nanoseconds end in the year 2262, file times do not
_SIZE = struct.Struct("=q")
_SEEN = struct.Struct("=QQQqI")
_64_BITS = 2**64 - 1
_SECOND = 10**9
_DIGEST = _FACTS.size + _SEEN.size
UNSEEN = bytes(_SEEN.size)
_DOUBTED, _UNSETTLED = 1 << 31, 1 << 30  # no mode has them


class Facts(NamedTuple):
    """The unpacked record of a regular file.

    Attributes:
        size: Size in bytes.
        mode: Permissions.
        mtime_ns: Modification time in nanoseconds.
        owner: Owner.
        digest: Digest of the content, its key in the store; empty if the content was not stored.
    """

    size: int
    mode: int
    mtime_ns: int
    owner: Owner
    digest: bytes


def pack(info: os.stat_result, digest: bytes, size: int, seen: bytes) -> File:
    """Pack the record of a regular file.

    Args:
        info: The file's status.
        digest: Digest of the content, its key in the store; empty if the content was not read.
        size: Size in bytes, whether or not the content was read.
        seen: The status for the next comparison (`seen`); `UNSEEN` if the file must be read again.
    """
    seconds, rest = divmod(info.st_mtime_ns, _SECOND)
    return _FACTS.pack(size, info.st_mode & PERMISSIONS, seconds, rest, info.st_uid, info.st_gid) + seen + digest


def facts(file: File) -> Facts:
    """Unpack the record of a regular file."""
    size, mode, seconds, rest, user, group = _FACTS.unpack_from(file)
    return Facts(size, mode, seconds * _SECOND + rest, (user, group), file[_DIGEST:])


def seen(info: os.stat_result) -> bytes:
    """Return the relevant status of a file. While it is unchanged, so is the content."""
    return _pack_status(info, info.st_mode)


def doubted(info: os.stat_result) -> bytes:
    """Return the status of a file whose content can change without it, so that the file must be read again."""
    return _pack_status(info, info.st_mode | _DOUBTED)


def unsettled(info: os.stat_result) -> bytes:
    """Return the status of a file that may have changed without a new status, so that the file must be read again."""
    return _pack_status(info, info.st_mode | _UNSETTLED)


def _pack_status(info: os.stat_result, mode: int) -> bytes:
    return _SEEN.pack(info.st_ino, info.st_ctime_ns & _64_BITS, info.st_mtime_ns & _64_BITS, info.st_size, mode)


def was_seen(file: File, now: bytes) -> bool:
    """Return whether a file's status was the same when the file was read."""
    return file[_FACTS.size : _DIGEST] == now


def kept_as(file: File) -> bytes:
    """Return the digest of a file's content; empty if the content was not stored."""
    return file[_DIGEST:]


def is_kept(file: File) -> bool:
    """Return whether a file's content was stored. Otherwise only its status is known."""
    return len(file) > _DIGEST


def is_seen(file: File) -> bool:
    """Return whether a file's status at the time of reading is known."""
    return not file.startswith(UNSEEN, _FACTS.size)


def changed_at(status: bytes) -> int:
    """Return the change time (ctime) in a status (`seen`)."""
    time: int = _SEEN.unpack(status)[1]
    return time


def changed_by(file: File) -> int:
    """Return a file's change time (ctime); 0 if its content can change without that."""
    _, changed, *_, mode = _SEEN.unpack_from(file, _FACTS.size)
    return 0 if mode & _DOUBTED else int(changed)


def seen_as(file: File) -> bytes | None:
    """Return a file's status (`seen`) when it was read; None if unknown."""
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
        target: Target path.
        owner: Owner.
        status: Status (`seen`); `UNSEEN` if unknown.
    """

    target: str
    owner: Owner
    status: bytes = UNSEEN
