"""Creates files with the requested permissions, even in a directory with a default access control list (ACL)."""

from __future__ import annotations

import os
import stat
from contextlib import suppress


def create(path: str | os.PathLike[str], flags: int, mode: int, *, dir_fd: int | None = None) -> int:
    """Create a file like `os.open`, and apply the umask even if a default ACL overrides it.

    Args:
        path: The file, which must not exist.
        flags: As for `os.open`, with O_CREAT and O_EXCL.
        mode: Its permissions, less the umask.
        dir_fd: The directory that the path is relative to.

    Returns:
        Its descriptor.
    """
    descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
    try:
        found = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if found & 0o077 and (wanted := found & ~_umask()) != found:
            os.fchmod(descriptor, wanted)
    except BaseException:  # of any kind: nothing else has the descriptor
        os.close(descriptor)
        raise
    return descriptor


def _umask() -> int:
    """Return the umask without changing it even briefly, because other threads may create files."""
    with suppress(OSError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0
