"""Confines a session's worker, from within, before any code runs: limits, no capabilities, no privileges, a filter."""

from __future__ import annotations

import base64
import ctypes
import errno
import os
import resource
import socket
import struct
from collections.abc import Sequence

from cellblock.walls.linux import abi, landlock, seccomp
from cellblock.walls.linux.syscall import call, identity_of_root, libc, map_user, prctl, unshare
from cellblock.walls.sandbox.plan import USER
from cellblock.wire.sandbox import Allow, Confinement


def confine(confinement: Confinement, supervisor: socket.socket | None = None, *, apart: bool = False) -> None:
    """Confine the worker as its last step: set limits, drop capabilities, forbid new privileges, and install the filter.

    Args:
        confinement: The confinement, computed by init.
        supervisor: The socket for the filter's listener, in a Landlock sandbox.
        apart: Whether this process has its own user namespace (`stand_apart`).

    Raises:
        OSError: A step failed. The process must not continue.
    """
    if identity_of_root() != confinement.root:
        # It was forked before the tree was built, and should have been moved with all other processes.
        raise OSError(errno.EXDEV, "this process is not in the sandbox's file system")
    _take_null_device()
    restrictions = confinement.restrictions
    for name, value in restrictions.limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is None:
            number = {"MSGQUEUE": abi.RLIMIT_MSGQUEUE}[name]
        _, hard = resource.getrlimit(number)
        if number == resource.RLIMIT_NOFILE:
            hard = _part_of(hard)
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (wanted, wanted))
    if apart:  # after the limits, so that the process limit applies to all processes of the session together
        stand_apart()
    os.nice(restrictions.nice)
    drop_capabilities()
    _forbid_new_privileges()
    if confinement.allowed is not None:
        _restrict_files(confinement.allowed, confinement.landlock)
    if not confinement.programs:
        _forbid_programs()
    program = base64.b64decode(restrictions.seccomp)  # last: it allows no more filters
    if supervisor is None:
        _filter(program)
    else:
        _filter_with(supervisor, program)
    # The parent may be hidden (not dumpable). Not earlier: the session's code could then write to its memory.
    prctl(abi.PR_SET_DUMPABLE, 1)


def _part_of(open_files: int) -> int:
    """Return the part of a limit of open files that a session may have.

    A process may send descriptors while its limit is above the number that the user has in flight. So trusted processes must
    have a higher limit.
    """
    return open_files // 2


def _take_null_device() -> None:
    """Replace the inherited host's null device, whose mode could be changed, with the sandbox's own."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0, inheritable=True)
    os.close(null)


def _forbid_new_privileges() -> None:
    prctl(abi.PR_SET_NO_NEW_PRIVS, 1)


def _forbid_programs() -> None:
    _filter(seccomp.no_programs(os.uname().machine))


def _filter(program: bytes) -> None:
    # The address of the bytes themselves: for a buffer, ctypes would create a type of its size.
    address = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value
    prctl(abi.PR_SET_SECCOMP, abi.SECCOMP_MODE_FILTER, struct.pack("HxxxxxxQ", len(program) // 8, address))


def _filter_with(supervisor: socket.socket, program: bytes) -> None:
    """Install a filter like `_filter`, with a listener at the other end of a socket."""
    address = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value
    code = struct.pack("HxxxxxxQ", len(program) // 8, address)
    try:
        flags = abi.SECCOMP_FILTER_FLAG_NEW_LISTENER | abi.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
        listener = call("seccomp", abi.SECCOMP_SET_MODE_FILTER, flags, code)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Before Linux 5.19, a signal interrupts a call that init has begun to answer.
        listener = call("seccomp", abi.SECCOMP_SET_MODE_FILTER, abi.SECCOMP_FILTER_FLAG_NEW_LISTENER, code)
    with supervisor:
        socket.send_fds(supervisor, [b"listener"], [listener])
    os.close(listener)


def _restrict_files(allowed: Sequence[Allow], found: int) -> None:
    """Restrict this process to the allowed files, and to its own directory in /proc."""
    landlock.restrict((*allowed, Allow(f"/proc/{os.getpid()}", "read", optional=True)), found)


def stand_apart() -> None:
    """Enter a child user namespace as the same user. Landlock does not need it, because its sandboxes are isolated anyway.

    A process has no permissions over processes of a parent or sibling namespace. Otherwise code could write to a background
    program's memory through /proc/PID/mem, or take its descriptors, and answer for it. And code that may execute nothing could
    execute anything by an approved program.
    """
    unshare(abi.CLONE_NEWUSER)
    # A fork of init is hidden like init, and root owns its files in /proc. From here on no other process controls it.
    prctl(abi.PR_SET_DUMPABLE, 1)
    map_user(USER, USER, USER, USER)


def drop_capabilities() -> None:
    """Drop every capability, for this process and everything that it will execute."""
    for capability in range(64):
        if libc.prctl(abi.PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel has no more capabilities
    prctl(abi.PR_CAP_AMBIENT, abi.PR_CAP_AMBIENT_CLEAR_ALL)
    call("capset", struct.pack("Ii", abi.LINUX_CAPABILITY_VERSION_3, 0), bytes(24))
