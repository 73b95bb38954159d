"""Copies file contents: as a shared clone if the file system supports it, and never beyond a limit."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator

_FICLONE = 0x40049409  # the same on x86-64 and aarch64
_CHUNK = 2**20
_ZEROS = bytes(_CHUNK)
DIGEST_BYTES = 20


class TooLargeError(Exception):
    """A file exceeds the size limit."""


def digest_of(source: int, limit: int) -> tuple[bytes, int]:
    """Return the digest and the size of an open file.

    Raises:
        TooLargeError: The file exceeds the limit.
    """
    digest, size = _hasher(), 0
    for chunk in _chunks(source, limit):
        digest.update(chunk)
        size += len(chunk)
    return digest.digest(), size


def hash_bytes(data: bytes) -> bytes:
    """Return the digest of bytes."""
    digest = _hasher()
    digest.update(data)
    return digest.digest()


def read_small(source: int, limit: int) -> bytes | None:
    """Return the content of a small open file, or None if it is large."""
    data = os.read(source, _CHUNK)
    if len(data) == _CHUNK:
        os.lseek(source, 0, os.SEEK_SET)
        return None
    while more := os.read(source, _CHUNK):  # rare: the file grows, or a signal interrupted the call
        data += more
        if len(data) > limit:
            raise TooLargeError
    return data


def copy(source: int, target: int, limit: int) -> tuple[bytes, int]:
    """Copy an open file to an empty one. Return the digest and the size of the copy.

    Raises:
        TooLargeError: The file exceeds the limit.
        OSError: From the system.
    """
    if share(source, target):
        # Read the copy, which does not change.
        return digest_of(target, limit)
    digest = _hasher()
    size = _copy_bytes(source, target, limit, digest)
    return digest.digest(), size


def copy_out(source: int, target: int) -> None:
    """Copy an open file to an empty one."""
    if not share(source, target):
        _copy_bytes(source, target, sys.maxsize)


def _copy_bytes(source: int, target: int, limit: int, digest: hashlib.blake2b | None = None) -> int:
    size, hole = 0, False
    for chunk in _chunks(source, limit):
        if digest is not None:
            digest.update(chunk)
        size += len(chunk)
        hole = chunk == _ZEROS
        if hole:  # a sparse file must not fill the disk
            os.lseek(target, len(chunk), os.SEEK_CUR)
        else:
            write(target, chunk)
    if hole:
        os.ftruncate(target, size)
    return size


def share(source: int, target: int) -> bool:
    """Clone a file's content into an empty file at no cost of time or space. Return False if that is not possible."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def write(target: int, data: bytes) -> None:
    """Write all of these bytes."""
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def _chunks(source: int, limit: int) -> Iterator[bytes]:
    size = 0
    while chunk := os.read(source, _CHUNK):
        size += len(chunk)
        if size > limit:
            raise TooLargeError
        yield chunk
