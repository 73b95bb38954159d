"""Covers protected paths in writable directories with mounts, and makes such directories read-only for a session.

Runs in a session's init, relative to the current directory. Standard library only; everything raises.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from cellblock.walls.linux import abi
from cellblock.walls.linux.mount_api import (
    READ_ONLY,
    WRITABLE,
    clone,
    clone_tree,
    is_mount_root,
    move,
    move_onto,
    new_filesystem,
    open_without_links,
    pin,
    set_attributes,
    set_read_only,
    unmount,
    without_links,
)
from cellblock.walls.linux.syscall import umount
from cellblock.walls.linux.targets import is_directory, make_way, taken
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.placeholders import is_placeholder
from cellblock.walls.sandbox.plan import BASE, BLANK, EMPTY
from cellblock.wire.sandbox import Bind, Mask, Protect, Step

_SHM = "/dev/shm"
"""A directory of each session's own."""


class Covers:
    """The covers of one session: read-only mounts on protected paths, and masks on secret ones."""

    def __init__(self, steps: Sequence[Step], bound: Mapping[Step, int], *, again: bool = False) -> None:
        """Store the arguments. `look` comes next.

        Args:
            steps: The steps of the plan.
            bound: The sources that are still to be bound, by their steps.
            again: Whether the session's tree exists, so that only uncovered paths are covered.
        """
        self._steps = [step for step in steps if isinstance(step, Protect | Mask)]
        self._tops = {step.top for step in self._steps}
        self._bound = bound
        self._again = again
        self._resolved: dict[str, str] = {}
        self._missing: set[str] = set()

    def look(self) -> None:
        """Resolve all paths, before a tree is built on top of some of them. Later, links have other targets, or none."""
        for target in {step.target for step in self._steps}:
            if (resolved := self._resolve(target)) is None:
                self._missing.add(target)
            else:
                self._resolved[target] = resolved
        self._missing -= self._made_by_binds()

    def _resolve(self, target: str) -> str | None:
        """Return a path without links; None if it does not exist."""
        if self._again:  # a cell waits: most do not exist, or are no links
            try:
                link = stat.S_ISLNK(os.lstat(target).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return None
            if not link and os.path.dirname(target) in self._tops:
                return target
        return without_links(target)

    def _made_by_binds(self) -> set[str]:
        """Return the paths that will exist only because something is bound at them, or in them."""
        moved = [step.target for step in self._bound if isinstance(step, Bind) and step.source != step.target]
        return {target[:end] for target in moved for end in (*_ends_of_parts(target), len(target))}

    def cover_all(self) -> None:
        for step in self._steps:
            self.cover(step)

    def cover(self, step: Protect | Mask) -> None:
        """Cover the path of one step, if it exists."""
        match step:
            case Mask(target=target) if target in self._missing:
                pass  # most names are missing
            case Protect(top, target) if target in self._missing and os.path.dirname(target) == top:
                pass  # a parent folder may be a placeholder, and so be protected
            case Protect(top, target):
                self._protect(top, target)
            case Mask(target, top):
                self._mask(target, top)

    def _is_done(self, place: int) -> bool:
        """Return whether a path is already covered. After the tree exists, only covers can have been mounted."""
        return self._again and is_mount_root(place)

    def _protect(self, top: str, target: str) -> None:
        """Protect a path in a writable directory from changes, including renames of its parents."""
        path = top
        for part in os.path.relpath(target, top).split("/"):
            path = f"{path}/{part}"
            with taken(path) as (place, mode):
                if place is None:
                    return
                if stat.S_ISLNK(mode):
                    if not self._is_done(place):
                        move_onto(self._blank(), place)  # a link cannot be made read-only, only hidden
                    break
                if path == target or not stat.S_ISDIR(mode) or is_placeholder(mode):
                    if not self._is_done(place):
                        descriptor = clone(place)
                        set_read_only(descriptor)
                        move_onto(descriptor, place)
                    return
                if not is_mount_root(place):
                    pin(place)
        self._protect_end_of_link(top, target)

    def _protect_end_of_link(self, top: str, target: str) -> None:
        resolved = self._resolved.get(target, target)
        if resolved != target and is_inside(resolved, top):
            self._protect(top, resolved)

    def _mask(self, target: str, top: str | None) -> None:
        for path in dict.fromkeys((target, self._end_of_masked_link(target, top))):
            if target != path and is_inside(target, path):
                continue  # a link to a parent directory: another session would lose its workspace
            with taken(path) as (place, mode):
                if place is not None and not self._is_done(place):
                    move_onto(self._mask_for(path, mode), place)

    def _end_of_masked_link(self, target: str, top: str | None) -> str:
        """Return the target of a masked path, if it is a link whose target should also be masked.

        An earlier session may have created a link in a writable directory. Such a link must not hide from the next session
        what the earlier one could not destroy itself: files elsewhere, or protected ones.
        """
        resolved = self._resolved.get(target, target)
        if top is None or resolved == target:
            return resolved
        kept = [step.target for step in self._steps if isinstance(step, Protect)]
        apart = not any(is_inside(resolved, path) or is_inside(path, resolved) for path in kept)
        return resolved if is_inside(resolved, top) and apart else target

    def _mask_for(self, path: str, mode: int) -> int:
        """Return a mask for a path: an inaccessible file, or a directory with only the paths to visible parts."""
        if not stat.S_ISDIR(mode):
            return self._blank()
        binds = [(step.target, held) for step, held in self._bound.items() if isinstance(step, Bind)]
        shown = {target: held for target, held in binds if target != path and is_inside(target, path)}
        if not shown:
            return self._empty()
        made = new_filesystem("tmpfs", {"size": "1m", "mode": "755"}, WRITABLE)
        for target, held in shown.items():
            make_way(made, target[len(path) + 1 :].split("/"), directory=is_directory(held))
        set_read_only(made)
        return made

    def _empty(self) -> int:
        """Return a mount of an inaccessible empty directory."""
        if not self._again:
            return clone_tree(BASE + EMPTY)
        return new_filesystem("tmpfs", {"size": "64k", "mode": "0"}, READ_ONLY)

    def _blank(self) -> int:
        """Return a mount of an inaccessible empty file."""
        if not self._again:
            return clone_tree(BASE + BLANK)
        made = new_filesystem("tmpfs", {"size": "64k", "mode": "755"}, WRITABLE)
        os.close(os.open("blank", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0, dir_fd=made))
        set_read_only(made)
        move(made, _SHM)  # temporarily: before Linux 6.15, only mounts in the tree can be cloned
        try:
            return clone_tree(f"{_SHM}/blank")
        finally:
            umount(_SHM)


def is_writable(target: str) -> bool:
    """Return whether a path exists without a link, and is neither covered nor masked."""
    with taken(target) as (place, _):
        return place is not None and not os.fstatvfs(place).f_flag & os.ST_RDONLY


def uncover(target: str) -> None:
    """Remove all covers of a path."""
    while True:
        with taken(target) as (place, _):
            if place is None or not is_mount_root(place):
                return
            unmount(place)


def close_directory(top: str) -> list[int]:
    """Make a writable directory read-only for the session, with all mounts in it.

    Returns:
        Descriptors of the mounts that were writable, for `open_again`.

    Raises:
        OSError: It is not possible now: EBUSY if a file in it is open for writing.
    """
    with ExitStack() as opened:
        writable = []
        for path in _mounts_below(top):
            try:
                place = open_without_links(path, 0)
            except OSError:
                continue  # another mount hides it
            if os.fstatvfs(place).f_flag & os.ST_RDONLY:
                os.close(place)
                continue
            opened.callback(os.close, place)
            writable.append(place)
        set_attributes(abi.AT_FDCWD, os.fsencode(top), abi.MOUNT_ATTR_RDONLY)
        opened.pop_all()
        return writable


def open_again(writable: Sequence[int]) -> None:
    """Make mounts writable again, and close their descriptors."""
    for place in writable:
        try:
            set_attributes(place, b"", 0, recursive=False, clear=abi.MOUNT_ATTR_RDONLY)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL only says that it is no longer mounted
                raise
    for place in writable:
        os.close(place)


def _mounts_below(top: str) -> list[str]:
    """Return the mount points at a directory and in it."""
    with open("/proc/self/mountinfo", "rb") as file:
        found = {os.fsdecode(line.split(b" ", 5)[4].decode("unicode_escape").encode("latin-1")) for line in file}
    return [path for path in found if is_inside(path, top)]


def _ends_of_parts(path: str) -> list[int]:
    return [place for place, letter in enumerate(path) if letter == "/" and place > 0]
