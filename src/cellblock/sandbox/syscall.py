"""System calls that Python has no function for. Standard library only; everything raises."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_PR_SET_DUMPABLE = 4

libc = ctypes.CDLL(None, use_errno=True)
"""The C library. After a call that failed, `ctypes.get_errno` says why."""


def call(name: str, number: int, *arguments: Any) -> int:
    """Make a system call.

    Args:
        name: What it is called, for the error.
        number: Its number.
        arguments: Its arguments.

    Raises:
        OSError: It failed.
    """
    converted = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *converted)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: Any) -> None:
    """Change something about this process.

    Raises:
        OSError: It failed.
    """
    padded = [ctypes.c_ulong(item) if isinstance(item, int) else item for item in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *padded) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def map_user(uid: int, outer_uid: int, gid: int, outer_gid: int) -> None:
    """In a new user namespace: say which user and group of the outside this process is in it."""
    for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {outer_uid} 1"), ("gid_map", f"{gid} {outer_gid} 1")):
        write(f"/proc/self/{name}", content)


def write(path: str, content: str) -> None:
    """Write to a file of the kernel's, in one go."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


def identity_of_root() -> list[int]:
    """Return what tells one root directory from another."""
    found = os.stat("/")
    return [found.st_dev, found.st_ino]


def hide() -> None:
    """Keep the worker out of this process: of its memory, root directory and environment in /proc."""
    prctl(_PR_SET_DUMPABLE, 0)
