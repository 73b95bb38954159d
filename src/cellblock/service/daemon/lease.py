"""The lease of a node of a cluster: until when its sessions may be used from elsewhere, and which placements are valid.

The process that runs the daemon writes it into a small file, which the daemon maps into its memory. So it also holds for
a daemon that was stopped for a while, and looking at it before each answer takes no system call. Times are those of
CLOCK_BOOTTIME, which goes on while the machine sleeps, in nanoseconds.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

from cellblock.errors import NotPlacedError

GRANT = 30_000_000_000
"""Nanoseconds within which a session has to begin, after the census by which it was placed."""

_STRUCT = struct.Struct("=QQ")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> int:
    """Return the time by which leases are measured, in nanoseconds."""
    return time.clock_gettime_ns(_CLOCK)


class Lease:
    """A lease in a file. A new one has run out.

    Args:
        path: The file, which is made if there is none.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _STRUCT.size)
            self._map = mmap.mmap(descriptor, _STRUCT.size)
        finally:
            os.close(descriptor)

    @property
    def until(self) -> int:
        """When it ends; 0 if it never began."""
        return int(_STRUCT.unpack_from(self._map)[0])

    @property
    def valid(self) -> bool:
        """Whether it has not run out."""
        return now() < self.until

    @property
    def epoch(self) -> int:
        """The number of the director by whose placements sessions are made."""
        return int(_STRUCT.unpack_from(self._map)[1])

    def renew(self, until: int, epoch: int) -> None:
        """Set when it ends, and whose placements are valid. Only one process does this."""
        _STRUCT.pack_into(self._map, 0, until, epoch)

    def check(self, grant: str, not_before: int = 0) -> None:
        """Check that a session may be made by a placement now.

        Args:
            grant: The placement's: the number of its director, and until when the session has to begin.
            not_before: Placements that the director decided on older knowledge than this are refused.

        Raises:
            NotPlacedError: It may not; another placement has to be asked for.
        """
        epoch, _, until = grant.partition(":")
        if not grant:
            raise NotPlacedError("sessions of a cluster's node are made by its director's placements, and this has none")
        if epoch != str(self.epoch):
            raise NotPlacedError("the placement was made by a director that is no more")
        if not until.isdecimal() or now() >= int(until):
            raise NotPlacedError("the placement came too late")
        if int(until) - GRANT < not_before:
            raise NotPlacedError("a session of this node has moved since the director has heard of it")
