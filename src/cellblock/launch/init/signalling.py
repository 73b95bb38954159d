"""Sends signals for a session's code, only to processes of the session. From version 6 on, Landlock enforces that itself.

A process belongs to the session if it is a descendant of init. A pid alone is not enough, because it can be reused. So init
first opens the process (a pidfd), then checks its session, and signals the opened process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from itertools import pairwise

from cellblock.launch.init import processes
from cellblock.launch.init.caller import Arguments, Caller
from cellblock.walls.linux.syscall import call

_DEEPEST = 4096  # generations
_LOOKS = 16  # checks of processes that change meanwhile
_SIGINFO = 128  # bytes


def kill(caller: Caller, given: Arguments) -> bool:
    """Answer ``kill``. Like the other functions here, return whether the call may proceed unchanged.

    It may if it is for the caller's own process: that pid cannot be reused while the caller waits, and numbers, unlike memory,
    do not change meanwhile. The caller then gets its own signal before the call returns, as programs expect.
    """
    target, number = _signed(given[0]), _signed(given[1])
    if target == caller.process():
        return True
    if target == -1:
        raise PermissionError(errno.EPERM, "everybody is more than the session")
    if target < 0:
        _send_to_group(-target, number)
    else:
        _send(target, number)
    return False


def tkill(caller: Caller, given: Arguments) -> bool:
    """Answer ``tkill``, for threads of the caller's own process."""
    target = _signed(given[0])
    if target != caller.thread:
        if not caller.has_thread(target):
            raise PermissionError(errno.EPERM, "not its own")
        call("tgkill", caller.process(), target, _signed(given[1]))
    return target == caller.thread


def tgkill(caller: Caller, given: Arguments) -> bool:
    """Answer ``tgkill`` and ``rt_tgsigqueueinfo`` for the caller's own process. Linux checks that it owns the thread."""
    if _signed(given[0]) != caller.process():
        raise PermissionError(errno.EPERM, "not its own")
    return True


def rt_sigqueueinfo(caller: Caller, given: Arguments) -> bool:
    """Answer ``rt_sigqueueinfo``."""
    target, number = _signed(given[0]), _signed(given[1])
    if target == caller.process():
        return True
    _send(target, number, _information(caller, given[2], number))
    return False


def pidfd_send_signal(caller: Caller, given: Arguments) -> bool:
    """Answer ``pidfd_send_signal``."""
    descriptor, number, information, flags = given[0] & 0xFFFFFFFF, _signed(given[1]), given[2], given[3]
    if flags:
        raise OSError(errno.EINVAL, "unknown flags")
    target = caller.process_behind(descriptor)
    if target <= 0:
        raise ProcessLookupError(errno.ESRCH, "it has ended")
    _send(target, number, _information(caller, information, number) if information else None)
    return False


def _signed(argument: int) -> int:
    """Return an argument as the kernel reads it: its low half, with a sign."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def _information(caller: Caller, address: int, number: int) -> bytes:
    """Return the data to deliver with a signal."""
    found = caller.read(address, _SIGINFO)
    if len(found) < _SIGINFO:
        raise OSError(errno.EFAULT, "no such address")
    return struct.pack("=i", number) + found[4:]


def _send_to_group(group: int, number: int) -> None:
    """Send a signal to every process of a group that belongs to the session.

    One pass can miss some: while a parent ends, its children are briefly not yet descendants of init. So this repeats until it
    finds no new ones.
    """
    seen: set[int] = set()
    for _ in range(_LOOKS):
        found = [pid for pid in processes.descendants(os.getpid()) if pid not in seen and processes.group_of(pid) == group]
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                _send(pid, number)
        seen.update(found)
    if not seen:
        raise ProcessLookupError(errno.ESRCH, "no such group")


def _send(pid: int, number: int, information: bytes | None = None) -> None:
    held = os.pidfd_open(pid)
    try:
        _check_below(pid)
        call("pidfd_send_signal", held, number, information, 0)
    finally:
        os.close(held)


def _check_below(pid: int) -> None:
    """Check that a process is a descendant of this one.

    If a parent ends meanwhile, as when a whole group is killed, the child gets another one, and this checks again.
    """
    for _ in range(_LOOKS):
        try:
            line = _ancestry(pid)
            if pid == os.getpid() or line[-1] != os.getpid():
                raise PermissionError(errno.EPERM, "not the session's")
            # Checked twice: the parent is the same both times only if it lived throughout, under the same pid.
            if all(_parent(child) == parent for child, parent in pairwise(line)):
                return
        except ProcessLookupError:
            _parent(pid)  # if that has ended too, there is nothing to signal
    raise PermissionError(errno.EPERM, "not known to be the session's")


def _ancestry(pid: int) -> list[int]:
    """Return a process, its parent, and so on up to this process or the end."""
    line = [pid]
    while line[-1] not in (os.getpid(), 0) and len(line) < _DEEPEST:
        line.append(_parent(line[-1]))
    return line


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, "it has ended") from None
