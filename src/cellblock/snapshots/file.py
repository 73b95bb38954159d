"""What is known of a regular file, as bytes, and of a link."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple, TypeAlias

PERMISSIONS = 0o777
"""The bits of a mode that are kept. Nothing gets a set-user-ID bit because code in a session had set one."""

Owner: TypeAlias = tuple[int, int]
"""The ids of a user and a group."""

File: TypeAlias = bytes
"""A regular file: what `pack` makes of it.

Python's garbage collector looks at every object but strings and numbers. A workspace can have 100,000 files, and while the
collector looks at an object for each, no other thread can run, not even that of the event loop.
"""

_FACTS = struct.Struct("=qIqII")
_SIZE = struct.Struct("=q")
_SEEN = struct.Struct("=QqqqI")
_DIGEST = _FACTS.size + _SEEN.size
UNSEEN = bytes(_SEEN.size)
_DOUBTED = 1 << 31  # no mode has it


class Facts(NamedTuple):
    """What is known of a regular file.

    Attributes:
        size: In bytes.
        mode: Its permissions.
        mtime_ns: When it was modified.
        owner: Whose it is.
        digest: The digest of its content, by which the store has it; empty if the content was not kept.
    """

    size: int
    mode: int
    mtime_ns: int
    owner: Owner
    digest: bytes


def pack(info: os.stat_result, digest: bytes, size: int, seen: bytes) -> File:
    """Return a regular file.

    Args:
        info: What the system says of it.
        digest: The digest of its content, by which the store has it; empty if the content was not read.
        size: How many bytes were read, or would have been.
        seen: What to compare to know whether to read it again (`seen`); `UNSEEN` if it must be read again.
    """
    return _FACTS.pack(size, info.st_mode & PERMISSIONS, info.st_mtime_ns, info.st_uid, info.st_gid) + seen + digest


def facts(file: File) -> Facts:
    """Return what is known of a regular file."""
    size, mode, mtime_ns, user, group = _FACTS.unpack_from(file)
    return Facts(size, mode, mtime_ns, (user, group), file[_DIGEST:])


def seen(info: os.stat_result) -> bytes:
    """Return what the system says of a file: if this has not changed, its content has not either."""
    return _SEEN.pack(info.st_ino, info.st_ctime_ns, info.st_mtime_ns, info.st_size, info.st_mode)


def doubted(info: os.stat_result) -> bytes:
    """Return what the system says of a file whose content can change without that: it must be read again."""
    return _SEEN.pack(info.st_ino, info.st_ctime_ns, info.st_mtime_ns, info.st_size, info.st_mode | _DOUBTED)


def was_seen(file: File, now: bytes) -> bool:
    """Whether the system said the same of a file when it was read."""
    return file[_FACTS.size : _DIGEST] == now


def kept_as(file: File) -> bytes:
    """Return the digest of a file's content; empty if the content was not kept."""
    return file[_DIGEST:]


def is_kept(file: File) -> bool:
    """Whether the content of a file was kept. Otherwise only what the system says of it is known."""
    return len(file) > _DIGEST


def is_seen(file: File) -> bool:
    """Whether it is known what the system said of a file when it was read."""
    return not file.startswith(UNSEEN, _FACTS.size)


def size_of(file: File) -> int:
    """Return how many bytes a file has."""
    size: int = _SIZE.unpack_from(file)[0]
    return size


class Link(NamedTuple):
    """A symbolic link."""

    target: str
    owner: Owner
