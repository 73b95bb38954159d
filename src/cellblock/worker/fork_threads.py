"""Tells which threads this process has besides its main one, and whose code each of them runs.

A fork has only the thread that forked. Whether that matters depends on the library that started the others. /proc knows their
ids only, so the function that a thread was started with is read from glibc's own record of it, at the offsets that glibc
publishes for debuggers.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Iterator

_MOST = 10_000
"""More threads than this are not looked at: the record may be damaged, and going round in circles."""

_POINTER = struct.Struct("@N")
_RUNTIME = "libstdc++"
"""It starts the threads of C++ libraries for them."""


class _Found(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def other_threads() -> list[int]:
    """Return the ids of all threads but the main one."""
    main = os.getpid()
    return [thread for name in os.listdir("/proc/self/task") if (thread := int(name)) != main]


def owners() -> dict[int, str]:
    """Return the file whose code each thread was started with, by the thread's id; of some it may be unknown.

    A thread that runs or ends meanwhile is no danger: its record is read through /proc, which fails where nothing is mapped.
    """
    try:
        record = _layout()
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return {}  # another C library, or a sandbox that hides its memory
    try:
        return {thread: file for thread, file in _started(memory, *record) if file}
    except OSError:
        return {}
    finally:
        os.close(memory)


@functools.cache
def _layout() -> tuple[tuple[int, ...], int, int, int]:
    """Return where the lists of threads begin, and where in the record of a thread its link, its id and its function are."""
    libc = ctypes.CDLL(None)

    def offset(name: str) -> int:
        return int((ctypes.c_uint32 * 3).in_dll(libc, f"_thread_db_{name}")[2])

    start = ctypes.addressof(ctypes.c_char.in_dll(libc, "_rtld_global"))
    lists = tuple(start + offset(f"rtld_global__dl_stack_{name}") for name in ("used", "user"))
    return lists, offset("pthread_list"), offset("pthread_tid"), offset("pthread_start_routine")


def _started(memory: int, lists: tuple[int, ...], link: int, thread: int, function: int) -> Iterator[tuple[int, str]]:
    for head in lists:
        node = _word(memory, head)
        for _ in range(_MOST):
            if node == head:
                break
            record = node - link
            (number,) = struct.unpack("@i", os.pread(memory, 4, record + thread))
            yield number, _starter(memory, record + function)
            node = _word(memory, node)


def _starter(memory: int, place: int) -> str:
    """Return the file whose code a thread runs, given the place of its function, which its argument follows."""
    file = file_of(_word(memory, place))
    if _RUNTIME not in os.path.basename(file):
        return file
    # std::thread: the argument is an object of a class that the library has made for its function.
    try:
        return file_of(_word(memory, _word(memory, place + _POINTER.size)))
    except OSError:
        return file


def _word(memory: int, place: int) -> int:
    data = os.pread(memory, _POINTER.size, place)
    if len(data) < _POINTER.size:
        raise OSError("nothing is mapped there")
    return int(_POINTER.unpack(data)[0])


@functools.lru_cache(maxsize=1000)  # it looks through all symbols of a library, which takes a while in large ones
def file_of(address: int) -> str:
    """Return the file that an address of code or data was loaded from, or an empty string."""
    found = _Found()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found)) or not found.file:
        return ""
    return os.fsdecode(found.file)
