"""The mount API of Linux 5.12 and later, as functions on descriptors. Standard library only; everything raises."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall import call, umount

_STATX_SIZE = 256

WRITABLE = abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NODEV
READ_ONLY = WRITABLE | abi.MOUNT_ATTR_RDONLY


def clone_tree(path: str) -> int:
    """Return a detached copy of the mounts at a path, without following symbolic links."""
    descriptor = open_without_links(path, 0)
    try:
        return clone(descriptor)
    finally:
        os.close(descriptor)


def open_without_links(path: str, flags: int) -> int:
    """Return a descriptor of a path without symbolic links. With O_NOFOLLOW, the path itself may be one."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC | flags, 0, abi.RESOLVE_NO_SYMLINKS | abi.RESOLVE_NO_MAGICLINKS)
    return call("openat2", abi.AT_FDCWD, os.fsencode(path), how, len(how))


def clone(descriptor: int) -> int:
    """Return a detached copy of the mounts at a descriptor and in it."""
    flags = abi.OPEN_TREE_CLONE | os.O_CLOEXEC | abi.AT_EMPTY_PATH | abi.AT_RECURSIVE
    return call("open_tree", descriptor, b"", flags)


def set_attributes(
    descriptor: int, path: bytes, attributes: int, propagation: int = 0, recursive: bool = True, *, clear: int = 0
) -> None:
    """Add attributes to the mount at a path relative to a descriptor, and to mounts in it.

    Args:
        descriptor: The start of the path.
        path: The path; empty for the descriptor itself.
        attributes: The attributes to add.
        propagation: How mounts propagate from now on; 0 for no change.
        recursive: Whether to change all mounts in it too, or none.
        clear: The attributes to remove.
    """
    value = struct.pack("QQQQ", attributes, clear, propagation, 0)
    flags = (abi.AT_RECURSIVE if recursive else 0) | (0 if path else abi.AT_EMPTY_PATH)
    call("mount_setattr", descriptor, path, flags, value, len(value))


def set_read_only(descriptor: int) -> None:
    """Make the mounts at a descriptor read-only, without devices and set-id bits."""
    set_attributes(descriptor, b"", READ_ONLY)


def new_filesystem(kind: str, options: dict[str, str], attributes: int) -> int:
    """Return a new detached file system."""
    context = call("fsopen", kind.encode(), abi.FSOPEN_CLOEXEC)
    try:
        for name, value in options.items():
            call("fsconfig", context, abi.FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
        call("fsconfig", context, abi.FSCONFIG_CMD_CREATE, None, None, 0)
        return call("fsmount", context, abi.FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(context)


def move(descriptor: int, target: str) -> None:
    """Attach a mount at a path, and close its descriptor."""
    try:
        call("move_mount", descriptor, b"", abi.AT_FDCWD, os.fsencode(target), abi.MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(descriptor)


def move_onto(descriptor: int, place: int) -> None:
    """Attach a mount on another descriptor, and close its own descriptor."""
    try:
        call("move_mount", descriptor, b"", place, b"", abi.MOVE_MOUNT_F_EMPTY_PATH | abi.MOVE_MOUNT_T_EMPTY_PATH)
    finally:
        os.close(descriptor)


def is_mount_root(place: int) -> bool:
    """Return whether a descriptor refers to the root of a mount."""
    found = bytearray(_STATX_SIZE)
    buffer = (ctypes.c_char * len(found)).from_buffer(found)
    call("statx", place, b"", abi.AT_EMPTY_PATH | abi.AT_SYMLINK_NOFOLLOW, 0, buffer)
    attributes: int = struct.unpack_from("Q", found, 8)[0]
    return bool(attributes & abi.STATX_ATTR_MOUNT_ROOT)


def unmount(place: int) -> None:
    """Unmount the mount whose root is a descriptor.

    Raises:
        OSError: It is not the root of a mount.
    """
    umount(f"/proc/self/fd/{place}")  # not by its path, which others may change meanwhile


def pin(place: int) -> None:
    """Mount a file or directory onto itself, because a mount point cannot be renamed."""
    move_onto(clone(place), place)


def without_links(path: str) -> str | None:
    """Return a path without symbolic links; None if it does not exist.

    Without links, the usual case, this takes one system call instead of one per component.
    """
    try:
        os.close(open_without_links(path, 0))
    except OSError as error:
        return None if error.errno == errno.ENOENT else os.path.realpath(path)
    return path


assert sys.byteorder == "little", "the layouts above are for little-endian machines"
