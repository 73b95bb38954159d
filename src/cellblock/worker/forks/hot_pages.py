"""Copies the pages of memory that each cell writes to, after a fork and before the next cell, while nothing waits.

A fork shares its memory with the original, and the first of the two that writes to a page copies it. Every cell writes to
hundreds of pages, because Python counts references in the objects themselves. Copying them takes longer than a small cell, so
it is done ahead of it, if a client pauses between two cells.

A fork of the zygote finds these pages once: all kernels have the same objects at the same addresses.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from array import array
from collections.abc import Callable

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14: copies pages as a write would, but writes nothing
_PAGE = os.sysconf("SC_PAGE_SIZE")  # not from mmap: if it is loaded, code uses it
_AT_ONCE = 4
"""How many runs of pages are copied between two looks at whether something waits."""

_MOST = 256 * 1024 * 1024
"""Maximum bytes of a mapping to look at."""

_SIZES, _POOL = range(16, 512, 16), 16 * 1024
"""Sizes of objects, and bytes that are filled with objects of each size."""

_ENTRY = 8
_OWN = re.compile(b"\x81")
"""Pages in /proc/self/pagemap, of each entry only the last byte: in memory, and not shared with any other process."""

_libc = ctypes.PyDLL(None)  # no other thread of Python runs meanwhile
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_runs: list[tuple[int, int]] = []
"""Addresses and lengths of neighbouring pages."""


class Finder:
    """Finds the pages, in a fork of the zygote that runs cells as a worker.

    Attributes:
        reader: Where the zygote reads the pages.
    """

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self._found: set[int] | None = None
        self._filling: list[bytes] = []
        self._forks: list[int] = []

    def fork_copy(self, number: int, soon: bool) -> None:
        """Share all memory, as a worker that is copied. The second and third call find the pages written since.

        New objects lie elsewhere in each kernel, so before the third call, others take the addresses of the second call's
        objects.
        """
        if number > 1:
            own = _own_pages()
            if self._found is not None:
                os.write(self._writer, _runs_of(self._found & own))
                for pid in self._forks:  # not left to the zygote, which adopts orphans
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                os._exit(0)
            self._found = own
            self._filling = [bytes(size) for size in _SIZES for _ in range(_POOL // size)]
        own_pid, pid = os.getpid(), _libc.fork()  # without Python's handlers, which would write to other pages
        if pid == 0:
            end_with(own_pid)
            while True:
                _libc.pause()
        if pid < 0:
            os._exit(1)
        self._forks.append(pid)

    def take(self) -> None:
        """Store, in the zygote, what the fork found; nothing if it failed."""
        os.close(self._writer)
        with open(self.reader, "rb") as pipe:
            told = pipe.read()
        found = array("Q", told[: len(told) // 16 * 16])
        _runs[:] = zip(found[::2], found[1::2], strict=True)


def end_with(parent: int) -> None:
    """Make this process end with its parent, whose id is given, because it may have ended already."""
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _own_pages() -> set[int]:
    """Return the addresses of the pages that this process shares with no other one."""
    found: set[int] = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps, open("/proc/self/pagemap", "rb", 0) as pagemap:
        for line in maps:
            span, access, _ = line.split(" ", 2)
            start, end = (int(bound, 16) for bound in span.split("-"))
            if access == "rw-p" and end - start <= _MOST:
                entries = os.pread(pagemap.fileno(), (end - start) // _PAGE * _ENTRY, start // _PAGE * _ENTRY)
                last = entries[_ENTRY - 1 :: _ENTRY]
                found |= {start + one.start() * _PAGE for one in _OWN.finditer(last)}
    return found


def _runs_of(pages: set[int]) -> array[int]:
    """Return the addresses and lengths of runs of adjacent pages."""
    runs = array("Q")
    for page in sorted(pages):
        if runs and runs[-2] + runs[-1] == page:
            runs[-1] += _PAGE
        else:
            runs.extend((page, _PAGE))
    return runs


def copy(waits: Callable[[], object]) -> None:
    """Copy the pages that a cell writes to, until something waits for this process.

    Args:
        waits: Returns whether something does. Called about a hundred times.
    """
    for first in range(0, len(_runs), _AT_ONCE):
        # Often all CPUs are busy now, and the process that finishes the copy, or the host, is ready to run on this one.
        # Without this it must wait until this process has used up its slice, up to 3 ms.
        os.sched_yield()
        if waits():
            break
        for start, length in _runs[first : first + _AT_ONCE]:
            _madvise(start, length, _POPULATE_WRITE)  # fails for memory that is no longer mapped
