"""Counts a session's objects in Linux kernel memory: file locks, watches, maps, descriptors in messages.

Linux has no limit on them, or only one that all processes of the user share, so a session has its own limits here. Counting is
slow, so it is rare without a sign: more kernel memory on the machine, or many descriptors in flight.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import socket
import time
from collections.abc import Callable, Collection, Iterable

from cellblock.launch.init import processes, system_v
from cellblock.launch.init.census import AGE, SHARE

_GROWTH = 32 << 20
"""Bytes by which the machine's kernel memory may grow until objects are counted again."""
_PERIOD = 5.0
"""Seconds until objects are counted again without a sign: while other programs free memory, the growth is not seen."""
_HIDDEN_GROWTH = 256 << 20
"""Bytes by which it may grow, since the first look, until processes that hide are ended: their objects cannot be counted."""
_IN_FLIGHT = 1024
_SIZES = {"file locks": 256, "watches of epoll": 200, "memory maps": 256, "semaphores to be undone": 128}
"""Bytes of kernel memory for each object; somewhat more than it takes on Linux 6.18."""
_SCM_FDS = re.compile(rb"^scm_fds:\s*(\d+)", re.MULTILINE)
_CHUNK = 1 << 20


def limits() -> dict[str, int]:
    """Return the limit for each kind of object. All sessions of a user share the maximum of some kinds."""
    return {
        "file locks": 100_000,
        "watches of epoll": min(200_000, _setting("fs/epoll/max_user_watches") // 8),
        "memory maps": 500_000,
        "semaphores to be undone": 500_000,
        "open descriptors": min(65_536, _setting("fs/file-max") // 8),
        "descriptors in unreceived messages": _IN_FLIGHT,
    }


def _setting(name: str) -> int:
    try:
        with open(f"/proc/sys/{name}", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 1 << 62


class KernelObjects:
    """The objects of one session at the last count.

    Attributes:
        size: An estimate of their kernel memory in bytes.
        excess: A sentence about the exceeded limit; empty if none.
    """

    def __init__(self, *, apart: bool) -> None:
        """Start without a count.

        Args:
            apart: Whether the session has its own namespaces.
        """
        self._apart = apart
        self.size = 0
        self.excess = ""
        self._limits: dict[str, int] = {}
        self._first: int | None = None
        self._hidden: set[int] = set()
        """The processes that hid at the last look. Some hide for a moment only: kernels that are being made from copies."""
        self._last = 0
        self._until = 0.0
        self._counted_at = 0.0
        self._pair: tuple[socket.socket, socket.socket] | None = None

    def look_if_due(self, pids: Callable[[], Collection[int]], copies: Collection[int]) -> None:
        """Look again, unless the last look still holds; see `look`."""
        began = time.monotonic()
        if began >= self._until:
            self.look(pids(), copies)
            now = time.monotonic()
            self._until = now + max(AGE, SHARE * (now - began))

    def look(self, pids: Collection[int], copies: Collection[int]) -> None:
        """Count the session's objects, if that may be necessary.

        Args:
            pids: The session's processes that run its code.
            copies: The pids among them of waiting copies of a worker, which hide.
        """
        now = _unreclaimable()
        self._last = min(self._last, now)
        sign = not now or now - self._last >= _GROWTH or self.size > 0 or bool(self._hidden) or self._many_in_flight()
        if self._first is None:
            self._first, self._limits = now, limits()
        elif not sign and time.monotonic() - self._counted_at < _PERIOD:
            return
        self._last, self._counted_at = now, time.monotonic()
        counted, hidden = self._count(pids)
        if sign:  # otherwise, what hides is harmless so far
            hidden.difference_update(copies)
            if now - self._first > _HIDDEN_GROWTH:
                processes.kill(hidden & self._hidden)
            self._hidden = hidden
        size = sum(number * _SIZES.get(kind, 0) for kind, number in counted.items())
        self.size = size if size >= _GROWTH else 0  # less is not worth counting at each look
        self.excess = next(
            (
                f"its processes have {number:,} {kind} or more; the limit is {self._limits[kind]:,}"
                for kind, number in counted.items()
                if number > self._limits[kind]
            ),
            "",
        )

    def _count(self, pids: Collection[int]) -> tuple[dict[str, int], set[int]]:
        """Return the number of objects by kind, until there are too many of a kind, and the processes that hide."""
        counted: dict[str, int] = dict.fromkeys(self._limits, 0)
        hidden: set[int] = set()
        if self._apart:
            counted["semaphores to be undone"] = system_v.sets_of_semaphores() * len(pids)
        for pid in pids:
            name = processes.name_in_proc(pid)
            try:
                for kind, number in _of_descriptors(f"/proc/{name}"):
                    counted[kind] += number
                    if counted[kind] > self._limits[kind]:
                        return counted, hidden
                counted["memory maps"] += _lines(f"/proc/{name}/maps", self._limits["memory maps"] - counted["memory maps"])
            except PermissionError:
                hidden.add(pid)
                with contextlib.suppress(OSError):
                    counted["open descriptors"] += os.stat(f"/proc/{name}/fd").st_size  # their number, since Linux 6.2
            except OSError:
                continue  # it has ended
            if any(counted[kind] > most for kind, most in self._limits.items()):
                break
        return counted, hidden

    def _many_in_flight(self) -> bool:
        """Return whether this user has many descriptors in unreceived messages.

        A process with a low limit can then send no more.
        """
        if not self._apart and os.geteuid() == 0:
            return True  # unknown: root outside of user namespaces has no limit
        if self._pair is None:
            self._pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(_IN_FLIGHT, soft), hard))
            socket.send_fds(self._pair[0], [b"x"], [self._pair[1].fileno()])
        except OSError as error:
            return error.errno == errno.ETOOMANYREFS
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in socket.recv_fds(self._pair[1], 1, 1)[1]:
            os.close(descriptor)
        return False


def _unreclaimable() -> int:
    """Return the kernel memory of this machine that cannot be freed, in bytes; 0 if unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError), open("/proc/meminfo", "rb") as file:
        return int(file.read().partition(b"SUnreclaim:")[2].split(None, 1)[0]) * 1024
    return 0


def _of_descriptors(process: str) -> Iterable[tuple[str, int]]:
    """Yield numbers of objects, by kind, for each descriptor of a process.

    Raises:
        OSError: It has ended, or hides.
    """
    for descriptor in os.listdir(f"{process}/fdinfo"):
        try:
            with open(f"{process}/fdinfo/{descriptor}", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            continue  # it was closed
        yield "open descriptors", 1
        if locks := data.count(b"\nlock:"):
            yield "file locks", locks
        if watches := data.count(b"\ntfd:"):
            yield "watches of epoll", watches
        if (found := _SCM_FDS.search(data)) is not None:
            yield "descriptors in unreceived messages", int(found[1])


def _lines(path: str, most: int) -> int:
    """Return the number of lines of a file, at least one more than `most` if there are more."""
    found = 0
    with open(path, "rb", buffering=0) as file:
        while found <= most and (data := file.read(_CHUNK)):
            found += data.count(b"\n")
    return found
