"""A process goes on in a new one that takes over its memory: a child of init then, without a second copy of its page tables.

A process that ends leaves its children to init. To become init's child, a fork could fork once more and end, but a fork of a
kernel takes one to two milliseconds. A new process that shares the memory of this one (``CLONE_VM``) takes a tenth of one.
The two have one stack, so they cannot run at once: this one waits in the kernel (``CLONE_VFORK``), and the new one kills it
there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import posix
import signal
from typing import NamedTuple

from cellblock.sandbox import abi
from cellblock.sandbox.syscall_numbers import number
from cellblock.worker.fork_threads import place_of_id, thread_pointer

_libc = ctypes.PyDLL(None, use_errno=True)  # not CDLL, which would give way to other threads in the middle

# The original: for code of the session, it first waits until the host has read what was printed.
end_at_once = posix._exit  # noqa: SLF001  # a public name with an underscore, as in `os`

_FLAGS = abi.CLONE_VM | abi.CLONE_VFORK | abi.CLONE_CHILD_SETTID | abi.CLONE_CHILD_CLEARTID | signal.SIGCHLD
_RSEQ_SIGNATURE = {"x86_64": 0x53053053, "aarch64": 0xD428BC00}
_syscall, _kill = _libc.syscall, _libc.kill
_before_fork, _after_fork = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
_ignored = ctypes.c_int()
"""Where the system notes that the process has ended, for which nobody waits"""


class _Thread(NamedTuple):
    """Where the C library keeps what the system knows of this thread. A fork has it at the same addresses.

    Attributes:
        id: The place of its number.
        robust: The list of locks that the system frees at its end, and the length of that.
        rseq: The arguments with which the system notes on which processor it runs; None if the C library does not have that.
    """

    id: int
    robust: tuple[int, int]
    rseq: tuple[int, int, int, int] | None


def look_up() -> None:
    """Find out what `go_on_in_successor` needs to know. Before a fork, because in the fork it would copy 80 pages."""
    with contextlib.suppress(ValueError):  # as there
        _thread()


def go_on_in_successor() -> None:
    """Go on in a new process, which is a child of the process that adopts this one's orphans. This one is killed.

    It must have one thread only, the main one.

    Raises:
        OSError: There is no room for a process. This one goes on.
    """
    try:
        own, thread = os.getpid(), _thread()
    except ValueError:  # of this C library nothing is known
        if os.fork():
            end_at_once(0)
        return
    # This process's end must not be noted where the other one's number is.
    _call("set_tid_address", ctypes.byref(_ignored))
    _before_fork()
    # The place of the number is the fourth argument or the fifth, depending on the machine.
    if (made := _call("clone", _FLAGS, 0, 0, thread.id, thread.id)) == 0:
        _kill(own, signal.SIGKILL)
        _after_fork()
        _call("set_robust_list", *thread.robust)
        if thread.rseq is not None:
            _call("rseq", *thread.rseq)
        return
    code = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if made < 0:
        raise OSError(code, os.strerror(code))
    end_at_once(0)  # an emulator has made a process of its own memory


def _call(name: str, *arguments: object) -> int:
    wide = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result: int = _syscall(ctypes.c_long(number(name)), *wide)
    return result


@functools.cache
def _thread() -> _Thread:
    return _Thread(place_of_id(), _robust_list(), _rseq())


def _robust_list() -> tuple[int, int]:
    """Return the list of locks that the system frees at this thread's end, and its length: a new process has none at first."""
    head, length = ctypes.c_void_p(), ctypes.c_size_t()
    _call("get_robust_list", 0, ctypes.byref(head), ctypes.byref(length))
    return head.value or 0, length.value


def _rseq() -> tuple[int, int, int, int] | None:
    """Return the arguments of a registration for restartable sequences, if the C library says so (since glibc 2.35)."""
    with contextlib.suppress(ValueError):  # no such symbol
        offset, size = (ctypes.c_ssize_t.in_dll(_libc, "__rseq_offset"), ctypes.c_uint.in_dll(_libc, "__rseq_size"))
        if size.value and platform.machine() in _RSEQ_SIGNATURE:
            return thread_pointer() + offset.value, max(size.value, 32), 0, _RSEQ_SIGNATURE[platform.machine()]
    return None
