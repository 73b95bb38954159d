"""Puts small objects into huge pages (2 MiB), so that the time of a fork does not grow with their number.

CPython keeps small objects in arenas of 1 MiB, and maps each separately, so that none is ever a huge page. A fork
copies an entry for each page of 4 KiB: 20 ms for ten million objects. The C library extends its heap by huge pages, if it was
started with `glibc.malloc.hugetlb=1` (`walls.sandbox.ground.ENVIRONMENT`). So arenas are taken from there.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
import sysconfig

_POOL = 16 * 1024
"""Alignment of an arena, in bytes: CPython does not use what comes before the first multiple of it (`POOL_SIZE`)."""

_RAW = 0
"""The domain of CPython's allocators that calls the C library (`PYMEM_DOMAIN_RAW`)."""

_ON_HEAP = (2 << 20) - (64 << 10)
"""Bytes of the largest blocks on the heap, after one of this size was freed. The heap grows by 2 MiB at least."""

_LONG = 0.05
"""Seconds after which a cell may have released so much that looking is worth its time."""

_MUCH = 64 << 20
"""Bytes of free memory on the heap that are returned to the system."""


class _ArenaAllocator(ctypes.Structure):
    """`PyObjectArenaAllocator` of CPython: `alloc(ctx, size)` and `free(ctx, address, size)`."""

    _fields_ = (("ctx", ctypes.c_void_p), ("alloc", ctypes.c_void_p), ("free", ctypes.c_void_p))


class _Allocator(ctypes.Structure):
    """`PyMemAllocatorEx` of CPython. Only its `free(ctx, address)` is used."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free"))


class _Use(ctypes.Structure):
    """`struct mallinfo2` of the C library; *free* is its `fordblks`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in ("a", "b", "c", "d", "e", "f", "g", "used", "free", "top"))


_LIBC = ctypes.CDLL(None)
_HAS_HEAP = sys.platform == "linux" and hasattr(_LIBC, "mallinfo2")  # glibc
if _HAS_HEAP:
    _LIBC.mallinfo2.restype = _Use


def put_on_heap() -> None:
    """Take arenas from the C library's heap from now on. It has no effect without glibc 2.35 or newer, or on other allocators.

    `alloc` is `memalign`, whose first argument, the alignment, is `ctx`. `free` is CPython's own call of the C library's
    `free`, which ignores `ctx`; the size, a third argument, is not looked at. So no C code of our own is needed.

    An arena that CPython mapped earlier must not reach this `free`, as it would if it became empty. So the objects that the
    garbage collector tracks, and what they refer to, are never released: tens of thousands, in about five arenas. When the
    interpreter finalizes, which does release them, arenas are unmapped again, also those on the heap.
    """
    if not _HAS_HEAP or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    python = ctypes.pythonapi
    raw, own = _Allocator(), _ArenaAllocator()
    python.PyMem_GetAllocator(_RAW, ctypes.byref(raw))
    if raw.ctx is not None:
        return  # a debugging allocator, which adds to each block
    python.PyObject_GetArenaAllocator(ctypes.byref(own))
    tracked = gc.get_objects()
    python.Py_IncRef(ctypes.py_object((tracked, gc.get_referents(*tracked))))
    _LIBC.malloc.restype, _LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    _LIBC.free.restype, _LIBC.free.argtypes = None, [ctypes.c_void_p]
    _LIBC.free(_LIBC.malloc(_ON_HEAP))  # the C library would map blocks of 128 KiB; it adapts to what is freed
    heap = _ArenaAllocator(_POOL, ctypes.cast(_LIBC.memalign, ctypes.c_void_p), raw.free)
    python.PyObject_SetArenaAllocator(ctypes.byref(heap))
    atexit.register(python.PyObject_SetArenaAllocator, ctypes.byref(own))


def release_free(seconds: float) -> None:
    """Return free memory of the heap to the system after a cell that may have released much.

    CPython would have unmapped its arenas. The C library returns only the free end of its heap on its own.

    Args:
        seconds: How long the cell ran.
    """
    if _HAS_HEAP and seconds >= _LONG and _LIBC.mallinfo2().free >= _MUCH:
        _LIBC.malloc_trim(0)
