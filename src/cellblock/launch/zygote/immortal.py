"""Makes a zygote's objects immortal, so that kernels do not copy pages by using objects on them.

CPython stores an object's reference count in the object. So a forked process writes to most of the pages that it only reads,
and Linux copies each of them. Since Python 3.12, an object is immortal if its count has a certain value (PEP 683): the count
then never changes. Only C code can set it (since 3.15 with `PyUnstable_SetImmortal`), so this module writes it into memory.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import sysconfig
from array import array
from itertools import chain
from types import CodeType, FunctionType

_COUNTS = {(3, 12): 0xFFFF_FFFF, (3, 13): 0xFFFF_FFFF, (3, 14): 3 << 30}
"""Python version → the count of an immortal object, an unsigned 32-bit number at the object's address.

CPython calls it `_Py_IMMORTAL_REFCNT` (Include/object.h), and since 3.14 `_Py_IMMORTAL_INITIAL_REFCNT` (Include/refcount.h).
"""

_COUNT_SIZE = 4
_ITEMS = object.__basicsize__ + 8
"""Offset of the address of a list's items: after its header and its length."""

_AT_ONCE = 1024
"""Maximum number of buffers in one system call (``IOV_MAX``)."""


def immortalise() -> None:
    """Make the objects that kernels use most immortal. It has no effect before Python 3.12.

    These are all objects that the garbage collector tracks, and code with its names and constants. Finding the rest as well,
    such as numbers and strings in dictionaries, would take twice as long, and save a twentieth of a kernel's memory.

    All tracked objects are frozen afterwards. No other thread may run meanwhile.
    """
    count = _COUNTS.get(sys.version_info[:2])
    if count is None or sys.platform != "linux" or sys.byteorder != "little" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    gc.unfreeze()
    known = gc.get_objects()
    gc.freeze()
    source = os.memfd_create("counts", os.MFD_CLOEXEC)
    try:
        os.write(source, count.to_bytes(_COUNT_SIZE, sys.byteorder) * _AT_ONCE)
        for objects in (known, *_code(known)):
            _write(source, objects)
    finally:
        os.close(source)


def _code(known: list[object]) -> list[list[object]]:
    """Return the code of all functions, including nested ones, with its names and constants."""
    found: list[list[object]] = []
    level = [one.__code__ for one in known if type(one) is FunctionType]
    while level:
        tables = [table for code in level for table in (code.co_names, code.co_consts)]
        held = list(chain.from_iterable(tables))
        found += [*level], [*tables], held
        level = [one for one in held if type(one) is CodeType]
    return found


def _write(source: int, objects: list[object]) -> None:
    """Write counts from a file to all objects in a list, 1,024 per system call.

    An object may be in the list several times: finding duplicates would take longer than writing again.
    """
    size = len(objects)
    if not size:
        return
    items = ctypes.c_uint64.from_address(id(objects) + _ITEMS).value
    places = array("Q", bytes(2 * 8 * size))  # of `struct iovec`: an address and a length each
    places[0::2] = array("Q", ctypes.string_at(items, 8 * size))
    places[1::2] = array("Q", [_COUNT_SIZE]) * size
    start, _ = places.buffer_info()
    preadv = ctypes.CDLL(None).preadv
    preadv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long]
    for first in range(0, size, _AT_ONCE):
        preadv(source, start + 2 * 8 * first, min(_AT_ONCE, size - first), 0)
