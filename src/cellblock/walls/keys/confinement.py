"""Confines a turnkey, from within, before it reads a byte of a session: no files, no new sockets, no programs."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

from cellblock.walls.linux import abi, landlock
from cellblock.walls.linux.bpf import ALLOW, ANY, Comparison, Conditional, compiled, error
from cellblock.walls.linux.seccomp import ARCHITECTURES, X32
from cellblock.walls.linux.syscall import prctl
from cellblock.walls.linux.syscall_numbers import BY_MACHINE

_OPEN_FILES = 1100
"""Two sockets for each of a session's 256 connections, and twice as many while others end."""
_MEMORY = 512 * 1024 * 1024

ALLOWED = (
    # Bytes on given descriptors, and descriptors from the host.
    "read write readv writev recvfrom recvmsg sendto sendmsg shutdown close getsockopt getsockname getpeername fstat "
    "epoll_wait epoll_pwait epoll_ctl poll ppoll "
    # Memory, time, random numbers, and the end.
    "munmap mremap brk madvise futex clock_gettime clock_nanosleep gettimeofday getrandom getpid gettid "
    "rt_sigreturn rt_sigprocmask sigaltstack restart_syscall exit exit_group"
)


def confine() -> None:
    """Confine this process irrevocably.

    Raises:
        OSError: A step failed. The process must not continue.
    """
    _hide()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    if (version := landlock.version()) > 0:
        landlock.restrict((), version)
    code = filter_program(os.uname().machine)
    address = ctypes.cast(ctypes.c_char_p(code), ctypes.c_void_p).value
    prctl(abi.PR_SET_SECCOMP, abi.SECCOMP_MODE_FILTER, struct.pack("HxxxxxxQ", len(code) // 8, address))


def _hide() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(abi.PR_SET_DUMPABLE, 0)  # no core, no ptrace, and /proc/PID belongs to root


def filter_program(machine: str) -> bytes:
    """Return the BPF program of the system calls of a turnkey. All others do not exist."""
    table = BY_MACHINE[machine]
    denied = error(errno.EPERM)
    outcomes: dict[int, int | Conditional] = {table[name]: ALLOW for name in ALLOWED.split() if name in table}
    for rule in (
        Conditional("mmap mprotect", "no new code", (((Comparison(2, 4, 4),), denied),), ALLOW),
        Conditional(
            "setsockopt",
            "only what a reset needs (SO_LINGER), and TCP_NODELAY",
            (
                ((Comparison(1, ANY, 1), Comparison(2, ANY, 13)), ALLOW),
                ((Comparison(1, ANY, 6), Comparison(2, ANY, 1)), ALLOW),
            ),
            denied,
        ),
        Conditional(
            "fcntl",
            "flags of a descriptor, no copies and no owners of signals",
            tuple(((Comparison(1, ANY, command),), ALLOW) for command in (1, 2, 3, 4)),
            denied,
        ),
        Conditional("ioctl", "non-blocking mode only (FIONBIO)", (((Comparison(1, ANY, 0x5421),), ALLOW),), denied),
    ):
        outcomes |= {table[name]: rule for name in rule.names.split() if name in table}
    return compiled(ARCHITECTURES[machine], outcomes, kill_from=X32 if machine == "x86_64" else None)
