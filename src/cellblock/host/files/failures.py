"""System errors as messages with advice."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cellblock.errors import FilesError

_MEANING = {
    errno.ENOENT: "it does not exist",
    errno.ELOOP: "it is a symbolic link, or its path has one, and links are never followed; use the path of the link's target",
    errno.EXDEV: "it is outside the folder, or on another file system",
    errno.ENOTDIR: "it is not a folder, or one of the folders above it is not",
    errno.EISDIR: "it is a folder",
    errno.ENXIO: "it is a FIFO, a socket or a device; only regular files are read and written",
    errno.EEXIST: "it already exists",
    errno.ENOTEMPTY: "the folder is not empty: recursive=True (--recursive on the command line) removes all of it",
    errno.EACCES: "permission denied; change its mode from within the session, or run as its owner",
    errno.EPERM: "the system does not permit it",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space is left on the device; nothing was changed: free some space, then try again",
    errno.EDQUOT: "the disk quota is used up; nothing was changed: free some space, then try again",
    errno.EFBIG: "it is larger than this process may write (see 'ulimit -f'); nothing was changed",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.EAGAIN: "the code in the session holds a lease on it; stop that code, then try again",
    errno.EMFILE: "too many files are open in this process (see 'ulimit -n')",
    errno.EBUSY: "it is in use, such as by a mount",
}


@contextmanager
def telling(verb: str, path: str) -> Iterator[None]:
    """Convert system errors to `FilesError`, except errors that already name a path.

    Args:
        verb: The operation, as in ``cannot read``.
        path: Its subject, shown by its `repr`: an untrusted name must not forge lines or move a terminal's cursor.
    """
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        meaning = _MEANING.get(code) or (os.strerror(code) if code else str(error))
        raise FilesError(f"cannot {verb} {path!r}: {meaning}", path=path, errno=error.errno) from error


def over(verb: str, path: str, what: str, limit: str, value: int, remedy: str = "") -> FilesError:
    """Return the error for an exceeded limit.

    Args:
        verb: The operation.
        path: Its subject.
        what: The excess, such as ``it has 12 bytes``.
        limit: The name of the limit.
        value: Its value.
        remedy: The advice; by default, to raise the limit.
    """
    remedy = remedy or f"give the session FileLimits with a larger {limit}, if that is meant"
    return FilesError(
        f"cannot {verb} {path!r}: {what}, over the limit of {value:,} ({limit}); {remedy}", path=path, errno=errno.EFBIG
    )
