"""How to open one path component in a directory that hostile code changes: links are never followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
# O_PATH needs no permission to read the folder, and does not really open it. macOS lacks it.
NAME = getattr(os, "O_PATH", os.O_RDONLY) | SAFE
ENTER = NAME | os.O_DIRECTORY
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | SAFE
# O_NONBLOCK: neither a FIFO nor a file under a lease may block open().
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | SAFE


@contextmanager
def held(fd: int) -> Iterator[int]:
    """Close a descriptor on leaving the context."""
    try:
        yield fd
    finally:
        os.close(fd)
