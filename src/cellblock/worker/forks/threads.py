"""Finds the threads of this process other than its main one, and whose code each of them runs.

A fork has only the thread that forked. Whether that matters depends on the library that started the others. /proc has only
their ids. So a thread's start function is read from glibc's own record of it, at offsets that glibc publishes for debuggers.
The record may change meanwhile, because threads end. So memory is read by system calls, which fail on unmapped addresses.
/proc is no alternative, because a fork in a Landlock sandbox does not have it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import sys
from collections.abc import Iterator

_MOST = 10_000
"""Maximum number of threads to examine: a damaged record may contain a cycle."""

_POINTER, _INTEGER = ctypes.sizeof(ctypes.c_void_p), ctypes.sizeof(ctypes.c_int)
_RUNTIME = "libstdc++"
"""Starts the threads of C++ libraries on their behalf."""


_libc = ctypes.CDLL(None)
_write = _libc.write
_pthread_self = ctypes.CFUNCTYPE(ctypes.c_void_p)(("pthread_self", _libc))


class _Found(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def other_threads() -> dict[int, str]:
    """Return the ids of all threads but the main one, each with the file of its start function, if known."""
    try:
        if len(os.listdir("/proc/self/task")) == 1:  # the usual case
            return {}
    except OSError:
        pass  # this machine does not tell
    main = os.getpid()
    started = _started()
    numbers = _numbers()  # after that: a thread that ends meanwhile does not count
    return {number: started.get(number, "") for number in (started if numbers is None else numbers) if number != main}


def _numbers() -> list[int] | None:
    """Return the ids of all threads, if known."""
    try:
        return list(_names_in_proc())
    except OSError:
        return None


def name_of(thread: int) -> str | None:
    """Return the name of a thread; None if it has ended.

    Raises:
        OSError: This process has no /proc.
    """
    try:
        with open(f"/proc/self/task/{_names_in_proc()[thread]}/comm", encoding="utf-8", errors="replace") as name:
            return name.read().strip()
    except (KeyError, FileNotFoundError, ProcessLookupError):
        return None


def _names_in_proc() -> dict[int, str]:
    """Return the ids of all threads, with their names in /proc.

    The two differ if /proc belongs to an outer pid namespace, as for root in a sandbox of srt.

    Raises:
        OSError: This process has no /proc.
    """
    names = os.listdir("/proc/self/task")
    if os.readlink("/proc/self") == str(os.getpid()):
        return {int(name): name for name in names}
    found: dict[int, str] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/self/task/{name}/status", "rb") as file:
            found |= {int(line.split()[-1]): name for line in file if line.startswith(b"NSpid:")}
    return found


def _started() -> dict[int, str]:
    found: dict[int, str] = {}
    try:
        lists, link, number, function = _layout()
        with _Memory() as memory:
            for record in _records(memory, lists, link):
                found[memory.integer(record + number)] = _starter(memory, record + function)
    except (OSError, ValueError):
        pass  # another C library, or a list that has changed
    return found


class _Memory:
    """Reads this process's memory."""

    def __enter__(self) -> _Memory:
        self._reader, self._writer = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def word(self, place: int) -> int:
        """Return the pointer at an address."""
        return int.from_bytes(self._read(place, _POINTER), sys.byteorder)

    def integer(self, place: int) -> int:
        """Return the C integer at an address."""
        return int.from_bytes(self._read(place, _INTEGER), sys.byteorder)

    def _read(self, place: int, size: int) -> bytes:
        if _write(self._writer, ctypes.c_void_p(place), size) != size:
            raise OSError(errno.EFAULT, "nothing is mapped there")
        return os.read(self._reader, size)


def place_of_id() -> int:
    """Return the address where the C library keeps the id of this thread.

    Raises:
        ValueError: It is unknown for this library.
    """
    return _own_record() + _offset("pthread_tid")


def thread_pointer() -> int:
    """Return the thread pointer: the address of the thread's record on x86-64, and the end of the record on arm64."""
    behind = platform.machine() == "aarch64"
    return _own_record() + (ctypes.c_uint32.in_dll(_libc, "_thread_db_sizeof_pthread").value if behind else 0)


def _own_record() -> int:
    own: int = _pthread_self()
    return own


@functools.cache
def _layout() -> tuple[tuple[int, ...], int, int, int]:
    """Return the heads of the lists of threads, and the offsets of link, id and function in the record of a thread."""
    start = ctypes.addressof(ctypes.c_char.in_dll(_libc, "_rtld_global"))
    lists = tuple(start + _offset(f"rtld_global__dl_stack_{name}") for name in ("used", "user"))
    return lists, _offset("pthread_list"), _offset("pthread_tid"), _offset("pthread_start_routine")


def _offset(name: str) -> int:
    return int((ctypes.c_uint32 * 3).in_dll(_libc, f"_thread_db_{name}")[2])


def _records(memory: _Memory, lists: tuple[int, ...], link: int) -> Iterator[int]:
    """Yield the addresses of the records of all threads."""
    for head in lists:
        node = memory.word(head)
        for _ in range(_MOST):
            if node == head:
                break
            yield node - link
            node = memory.word(node)


def _starter(memory: _Memory, place: int) -> str:
    """Return the file whose code a thread runs, given the address of its function, which its argument follows."""
    file = file_of(memory.word(place))
    if _RUNTIME not in os.path.basename(file):
        return file
    # std::thread: the argument is an object of a class that the library has generated for its function.
    try:
        return file_of(memory.word(memory.word(place + _POINTER)))
    except OSError:
        return file


@functools.lru_cache(maxsize=1000)  # it searches all symbols of a library, which is slow in large ones
def file_of(address: int) -> str:
    """Return the file from which an address of code or data was loaded, or an empty string."""
    found = _Found()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found)) or not found.file:
        return ""
    return os.fsdecode(found.file)
