"""Opens, creates and mounts at paths of a new tree, relative to the current directory, which becomes its root."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from cellblock.walls.linux.mount_api import clone_tree, move, new_filesystem, open_without_links, set_read_only


@contextmanager
def taken(target: str) -> Iterator[tuple[int | None, int]]:
    """Open a path of the new tree, and yield it with its mode; None if it does not exist, or contains a link."""
    try:
        place = open_without_links(f".{target}", os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        yield None, 0
        return
    try:
        yield place, os.fstat(place).st_mode
    finally:
        os.close(place)


def is_directory(descriptor: int) -> bool:
    """Return whether a descriptor refers to a directory."""
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def make_way(top: int, parts: list[str], *, directory: bool) -> None:
    """Create a mount point and its parents in one of our own file systems."""
    for depth in range(1, len(parts) + 1):
        try:
            if depth < len(parts) or directory:
                os.mkdir("/".join(parts[:depth]), dir_fd=top)
            else:
                os.close(os.open("/".join(parts), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=top))
        except FileExistsError:
            continue


def mount_new(kind: str, target: str, options: dict[str, str], attributes: int) -> None:
    """Mount a new file system at a path of the new tree."""
    make_target(target, directory=True)
    move(new_filesystem(kind, options, attributes), f".{target}")


def make_file(target: str, content: str, mode: int) -> None:
    """Create a file in the new tree."""
    os.makedirs(os.path.dirname(f".{target}"), exist_ok=True)
    with open(f".{target}", "x") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def make_read_only(target: str) -> None:
    """Make a path of the new tree read-only, if it exists."""
    if os.path.lexists(f".{target}"):
        descriptor = clone_tree(f".{target}")
        set_read_only(descriptor)
        move(descriptor, f".{target}")


def make_target(target: str, *, directory: bool) -> None:
    """Create a missing mount point in the new tree."""
    path = f".{target}"
    _make_above(os.path.dirname(path))
    if directory:
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o444))


def _make_above(path: str) -> None:
    """Create the missing directories above a mount point.

    Those in the session's own ``/tmp`` are not writable: what code wrote next to its workspace would be lost with the kernel.
    """
    if path and not os.path.isdir(path):
        _make_above(os.path.dirname(path))
        os.mkdir(path, 0o555 if path.startswith("./tmp/") else 0o777)
