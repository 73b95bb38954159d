"""Creates and enters the namespaces of sandboxes. Standard library only; everything raises."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import itertools
import os
import resource
import signal
import socket
import struct

from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall import libc, map_user, read, unshare, write
from cellblock.walls.linux.syscall_numbers import number
from cellblock.walls.sandbox.plan import HOSTNAME, USER

_SHARED = (resource.RLIMIT_NPROC, resource.RLIMIT_MEMLOCK, resource.RLIMIT_SIGPENDING, abi.RLIMIT_MSGQUEUE)
"""Limits of what a user's processes have together; of namespaces since Linux 5.14."""
_PART = 8
"""Of these limits, an eighth is left to processes outside of a namespace, at each level."""

_NAMESPACES = abi.CLONE_NEW_ALL
"""The namespaces that each session has for itself."""


def fork_into_namespaces(group: int | None = None) -> int:
    """Fork, with the child as process 1 of its own namespaces. Returns like `os.fork`.

    One clone instead of two forks: after unshare, only children are in the new pid namespace. Python's own fork hooks run, as
    with `os.fork`. The C library's do not, which is safe in a process with one thread.

    Args:
        group: A descriptor of the child's control group. Moving the child later would take ten milliseconds.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int
    limits = _leave_a_part()  # to this process, which must be able to create more
    if group is None:
        flags = _NAMESPACES | signal.SIGCHLD
        pid = libc.syscall(ctypes.c_long(number("clone")), ctypes.c_long(flags), 0, 0, 0, 0, 0)
    else:
        # flags, unused fields, the signal at the child's end, more unused fields, and the group.
        flags = _NAMESPACES | abi.CLONE_INTO_CGROUP
        arguments = struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
        pid = libc.syscall(ctypes.c_long(number("clone3")), arguments, ctypes.c_long(len(arguments)))
    code = ctypes.get_errno()
    for which, before in limits:
        resource.setrlimit(which, before)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, f"clone: {os.strerror(code)}")
    return pid


def enter_namespaces(uid: int, gid: int) -> None:
    """Become an ordinary user in new namespaces, as their process 1, and bring the loopback interface up."""
    if os.getpid() != 1:
        raise OSError(errno.EINVAL, "this process is not the first of a pid namespace of its own")
    map_user(USER, uid, USER, gid)
    # A new one with this process's group as root. The clone's shows the path of the zygote's.
    unshare(abi.CLONE_NEWCGROUP)
    socket.sethostname(HOSTNAME)
    _bring_loopback_up()


def enter_mount_namespace(uid: int, gid: int) -> None:
    """Enter namespaces that allow mounts, as a zygote, before anything is loaded.

    Args:
        uid: The user outside, and inside.
        gid: The group outside, and inside.
    """
    _leave_a_part()
    unshare(abi.CLONE_NEWUSER | abi.CLONE_NEWNS)
    map_user(uid, uid, gid, gid)
    _share_inotify()


def _leave_a_part() -> list[tuple[int, tuple[int, int]]]:
    """Lower limits of this process before it creates a user namespace, where they are the maxima of all processes together.

    The rest is left to the processes outside: the maxima are compared with the user's total, inside or not.

    Returns:
        The previous limits.
    """
    before = [(which, resource.getrlimit(which)) for which in _SHARED]
    for which, (soft, hard) in before:
        if soft != resource.RLIM_INFINITY:
            resource.setrlimit(which, (soft - soft // _PART, hard))
    return before


def _share_inotify() -> None:
    """Leave instances and watches of inotify to the user's other processes, in a new user namespace."""
    if kernel_version() < (5, 12):  # one maximum for the machine, as for `plan`
        return
    for name in ("instances", "watches"):
        with contextlib.suppress(OSError):  # a container without access to them; `cellblock doctor` says so
            path = f"/proc/sys/user/max_inotify_{name}"
            most = min(int(read(path)), int(read(f"/proc/sys/fs/inotify/max_user_{name}")))
            write(path, str(most // 2))


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(any_socket, abi.SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, abi.SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | abi.IFF_UP, b""))


def listen(port: int) -> socket.socket:
    """Return a listener on the session's own loopback interface, for the host to serve.

    It is created before any code runs that could take the port, or replace the listener.
    """
    return socket.create_server(("127.0.0.1", port), backlog=128)


def dial(port: int) -> socket.socket:
    """Begin a connection to a port of the session's own loopback interface. The socket may still be connecting.

    Raises:
        OSError: The connection is refused.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    code = made.connect_ex(("127.0.0.1", port))
    if code not in (0, errno.EINPROGRESS):
        made.close()
        raise OSError(code, os.strerror(code))
    return made


@functools.cache
def kernel_version() -> tuple[int, int]:
    """Return the running kernel's major and minor version."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(itertools.takewhile(str.isdigit, minor)))
