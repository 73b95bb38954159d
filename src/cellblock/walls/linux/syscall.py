"""System calls for which Python has no function. Standard library only; everything raises."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall_numbers import number

libc = ctypes.CDLL(None, use_errno=True)
"""The C library. After a failed call, `ctypes.get_errno` gives the error."""
for _name in ("syscall", "prctl", "unshare", "umount2"):
    hasattr(libc, _name)  # looked up once, here: a fork that does it copies 60 pages


def call(name: str, *arguments: Any) -> int:
    """Make a system call.

    Raises:
        OSError: It failed.
    """
    converted = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result: int = libc.syscall(ctypes.c_long(number(name)), *converted)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: Any) -> None:
    """Call prctl.

    Raises:
        OSError: It failed.
    """
    padded = [ctypes.c_ulong(item) if isinstance(item, int) else item for item in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *padded) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def unshare(namespaces: int) -> None:
    """Enter new namespaces.

    Raises:
        OSError: It failed.
    """
    if libc.unshare(namespaces) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")


def umount(path: str, *, missing_ok: bool = False) -> bool:
    """Unmount the topmost mount at a path in this mount namespace. Return whether there was one.

    Raises:
        OSError: It failed, unless ``missing_ok``.
    """
    if libc.umount2(os.fsencode(path), abi.MNT_DETACH) == 0:
        return True
    code = ctypes.get_errno()
    if not missing_ok:
        raise OSError(code, f"umount of {path}: {os.strerror(code)}")
    return False


def map_user(uid: int, outer_uid: int, gid: int, outer_gid: int) -> None:
    """Map the user and group of a new user namespace to those outside."""
    for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {outer_uid} 1"), ("gid_map", f"{gid} {outer_gid} 1")):
        write(f"/proc/self/{name}", content)


def write(path: str, content: str) -> None:
    """Write to a kernel file in one system call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


def read(path: str) -> str:
    """Read a kernel file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def identity_of_root() -> tuple[int, int]:
    """Return the identity of the root directory."""
    found = os.stat("/")
    return found.st_dev, found.st_ino


def hide() -> None:
    """Hide this process from the worker: its memory, root directory and environment in /proc."""
    prctl(abi.PR_SET_DUMPABLE, 0)
