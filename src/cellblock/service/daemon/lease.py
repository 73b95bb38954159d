"""The lease of a cluster node: how long remote clients may use its sessions, and which placements are valid.

The daemon's parent process writes the lease into a small file, and the daemon maps the file into memory. The lease
therefore also works for a daemon that was stopped for a while, and checking it costs no system call. Times are nanoseconds
of CLOCK_BOOTTIME, which includes sleep.
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
    """Return the current time of the lease clock, in nanoseconds."""
    return time.clock_gettime_ns(_CLOCK)


class Lease:
    """A lease in a file. A new lease has expired.

    Args:
        path: The file, created if missing.
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
        """The time of expiry; 0 if the lease never started."""
        return int(_STRUCT.unpack_from(self._map)[0])

    @property
    def valid(self) -> bool:
        """Whether the lease has not expired."""
        return now() < self.until

    @property
    def epoch(self) -> int:
        """The number of the director whose placements are valid."""
        return int(_STRUCT.unpack_from(self._map)[1])

    def renew(self, until: int, epoch: int) -> None:
        """Set the time of expiry and the director. Only one process may call this."""
        _STRUCT.pack_into(self._map, 0, until, epoch)

    def check(self, grant: str, not_before: int = 0) -> None:
        """Check that a placement may create a session now.

        Args:
            grant: The placement's director number, and the time by which the session has to start.
            not_before: Placements decided on older knowledge than this time are refused.

        Raises:
            NotPlacedError: The placement is invalid; request another one.
        """
        epoch, _, until = grant.partition(":")
        if not grant:
            raise NotPlacedError(
                "a node of a cluster creates only sessions that its director placed, and this request has no placement"
            )
        if epoch != str(self.epoch):
            raise NotPlacedError("the placement was made by an earlier director")
        if not until.isdecimal() or now() >= int(until):
            raise NotPlacedError("the placement has expired")
        if int(until) - GRANT < not_before:
            raise NotPlacedError("a session of this node moved after its last report to the director")
