"""Continues a process in a new one that takes over its memory: as a child of init, without copying its page tables again.

Init adopts the children of a process that ends. To become init's child, a fork could fork once more and end, but forking a
kernel takes one to two milliseconds. A new process that shares this one's memory (``CLONE_VM``) takes a tenth of that. The two
share one stack, so they cannot run at once: this one waits in the kernel (``CLONE_VFORK``), and the new one kills it there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import posix
import signal
from typing import NamedTuple

from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall_numbers import number
from cellblock.worker.forks.threads import place_of_id, thread_pointer

_libc = ctypes.PyDLL(None, use_errno=True)  # not CDLL, which would release the GIL to other threads in the middle

# The original: the code's version first waits until the host has read all output.
end_at_once = posix._exit  # noqa: SLF001  # a public name with an underscore, as in `os`

_FLAGS = abi.CLONE_VM | abi.CLONE_VFORK | abi.CLONE_CHILD_SETTID | abi.CLONE_CHILD_CLEARTID | signal.SIGCHLD
_RSEQ_SIGNATURE = {"x86_64": 0x53053053, "aarch64": 0xD428BC00}
# By names of this module, which a fork finds without writing to other modules' pages.
_fork, _syscall, _kill, _prctl = _libc.fork, _libc.syscall, _libc.kill, _libc.prctl
_getpid, _SIGKILL = os.getpid, int(signal.SIGKILL)
_PDEATHSIG = ctypes.c_long(abi.PR_SET_PDEATHSIG), ctypes.c_long(signal.SIGKILL)
# The system call: the C library's function leaves two signals unblocked, which end a process.
_MASK = tuple(map(ctypes.c_long, (number("rt_sigprocmask"), signal.SIG_SETMASK)))
_EVERY_SIGNAL, _mask = ctypes.create_string_buffer(b"\xff" * 8, 8), ctypes.create_string_buffer(8)
_OF_MASK = ctypes.c_long(8)
_SET_NAME, _GET_NAME = ctypes.c_long(abi.PR_SET_NAME), ctypes.c_long(abi.PR_GET_NAME)
_SET_DUMPABLE, _GET_DUMPABLE = ctypes.c_long(abi.PR_SET_DUMPABLE), ctypes.c_long(abi.PR_GET_DUMPABLE)
_HIDDEN, _dumpable = ctypes.c_long(0), ctypes.c_long(1)
_NAME, _name = ctypes.create_string_buffer(b"checkpoint"), ctypes.create_string_buffer(16)
_ignored = ctypes.c_int()
"""Where the system notes the end of the process, which nothing waits for."""


class _Calls(NamedTuple):
    """Arguments of system calls about this thread. In a fork, the objects that they refer to have the same addresses.

    Attributes:
        leave: Moves the note about this thread's end away from the address where the C library keeps the thread's id.
        clone: Creates a new process with this memory; its id is written where the C library keeps it.
        robust: The list of locks that the system releases at the thread's end: a new process starts without one.
        rseq: The rseq area, where the kernel stores the CPU number; None if the C library has none.
    """

    leave: tuple[object, ...]
    clone: tuple[object, ...]
    robust: tuple[object, ...]
    rseq: tuple[object, ...] | None


_looked_up: _Calls | None = None
"""The arguments; None if they are not known, because this is an unknown C library."""


def look_up() -> None:
    """Prepare the data for `go_on_in_successor` before a fork, because in the fork it would copy 80 pages."""
    global _looked_up
    if _looked_up is None:
        with contextlib.suppress(ValueError):
            _looked_up = _look_up()


def fork() -> int:
    """Fork without Python's handlers, for which the caller is responsible.

    Raises:
        OSError: No more processes can be created.
    """
    pid: int = _fork()
    if pid < 0:
        raise _error()
    return pid


def block_signals() -> None:
    """Block all signals but SIGKILL and SIGSTOP before a fork."""
    _prctl(_GET_NAME, _name)
    _dumpable.value = _prctl(_GET_DUMPABLE)
    _syscall(*_MASK, _EVERY_SIGNAL, _mask, _OF_MASK)


def stand_apart() -> None:
    """Change the name of the fork, so that `pkill python` does not end it."""
    _prctl(_SET_NAME, _NAME)


def unblock_signals() -> None:
    """Unblock signals, in the process that was forked, or in a fork of the fork."""
    _syscall(*_MASK, _mask, None, _OF_MASK)


def hide() -> None:
    """Prevent code, which has the same user, from writing to the fork's memory (/proc/PID/mem)."""
    _prctl(_SET_DUMPABLE, _HIDDEN)


def join_again() -> None:
    """Restore the name and visibility of the original process, in a fork of the fork."""
    _prctl(_SET_NAME, _name)
    _prctl(_SET_DUMPABLE, _dumpable)


def die_with_parent() -> None:
    """Do the same as `processes.die_with_parent(signal.SIGKILL)` with prepared arguments, which copies 25 pages less here."""
    _prctl(*_PDEATHSIG)


def go_on_in_successor() -> None:
    """Continue in a new process, a child of the process that adopts this one's orphans. This one is killed.

    It must have only one thread, the main one. None of Python's handlers for forks is called.

    Raises:
        OSError: No more processes can be created. This one continues.
    """
    if _looked_up is None:
        look_up()
    if _looked_up is None:  # an unknown C library
        if fork():
            end_at_once(0)
        return
    own = _getpid()
    leave, clone, robust, rseq = _looked_up  # not by their names, whose descriptors would be written to
    _syscall(*leave)
    if (made := _syscall(*clone)) == 0:
        _kill(own, _SIGKILL)
        _syscall(*robust)
        if rseq is not None:
            _syscall(*rseq)
    elif made < 0:
        raise _error()
    else:
        end_at_once(0)  # an emulator has created a process with its own memory


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _look_up() -> _Calls:
    place = place_of_id()
    return _Calls(
        _call("set_tid_address", ctypes.byref(_ignored)),
        # The id's address is the fourth argument or the fifth, depending on the machine.
        _call("clone", _FLAGS, 0, 0, place, place),
        _call("set_robust_list", *_robust_list()),
        _rseq(),
    )


def _call(name: str, *arguments: object) -> tuple[object, ...]:
    return ctypes.c_long(number(name)), *(ctypes.c_long(item) if isinstance(item, int) else item for item in arguments)


def _robust_list() -> tuple[int, int]:
    head, length = ctypes.c_void_p(), ctypes.c_size_t()
    _syscall(*_call("get_robust_list", 0, ctypes.byref(head), ctypes.byref(length)))
    return head.value or 0, length.value


def _rseq() -> tuple[object, ...] | None:
    with contextlib.suppress(ValueError):  # no such symbol: it exists since glibc 2.35
        offset, size = (ctypes.c_ssize_t.in_dll(_libc, "__rseq_offset"), ctypes.c_uint.in_dll(_libc, "__rseq_size"))
        if size.value and platform.machine() in _RSEQ_SIGNATURE:
            place = thread_pointer() + offset.value
            return _call("rseq", place, max(size.value, 32), 0, _RSEQ_SIGNATURE[platform.machine()])
    return None
