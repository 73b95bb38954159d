"""Blocks protected names that do not exist, with an empty directory for each.

A mount needs a mount point. Placeholders are created before untrusted code runs, and removed by the last session of that
directory, in any program. Standard library only, and trusted processes only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.policy import ENV, MAKEABLE, PROTECTED, SECRET

# The sticky bit marks them: mkdir sets it, so a placeholder always has its mark, and no other directory has this mode by
# chance. A user who wants the directory changes its mode, and so takes it over.
_MODE = 0o1500
_USUAL = frozenset((*PROTECTED, ENV)) - MAKEABLE
_PATIENCE = 5.0
"""Seconds to wait while another session removes placeholders, which takes a fraction of a millisecond."""
_SHORT_PATIENCE = 1.0
"""The same for a session that has begun: its init answers nothing else meanwhile."""


def is_placeholder(mode: int) -> bool:
    """Return whether a mode is a placeholder's, ignoring a set-group-id bit inherited from its parent."""
    return stat.S_ISDIR(mode) and stat.S_IMODE(mode) & ~stat.S_ISGID == _MODE


def is_project(top: str) -> bool:
    """Return whether a directory is a project: part of a repository, or it contains a protected name.

    Only in a project do programs look for the other names. Elsewhere a placeholder is a meaningless entry that misleads
    language models.

    Args:
        top: The directory, absolute and without symbolic links.
    """
    if any(_is_there(f"{top}/{name}") for name in (*PROTECTED, *SECRET)):
        return True
    while (above := os.path.dirname(top)) != top:
        top = above
        if os.path.lexists(f"{top}/.git"):
            return True
    return False


def _is_there(path: str) -> bool:
    try:
        return not is_placeholder(os.lstat(path).st_mode)
    except OSError:
        return False


def names_to_keep(top: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return which names to block in a directory: outside of projects, only names that a policy adds.

    Args:
        top: The directory, absolute and without symbolic links.
        names: Relative paths.
    """
    return tuple(names) if is_project(top) else tuple(name for name in names if name not in _USUAL)


class Hold:
    """A session's reference to the placeholders of one directory, which exist as long as there are references.

    It is a shared lock (flock) on the directory itself. Its descriptor can be passed to other processes, and it ends with the
    last of them. It needs no file that could be left behind.

    Attributes:
        descriptor: The directory.
        names: Relative paths to block.
    """

    def __init__(self, descriptor: int, names: Iterable[str]) -> None:
        self.descriptor = descriptor
        self.names = tuple(names)

    @classmethod
    def take(cls, top: str, names: Iterable[str]) -> Self | None:
        """Take a reference without creating placeholders.

        Args:
            top: The directory, absolute and without symbolic links.
            names: Relative paths without ``..``.

        Returns:
            The hold; None if the directory does not exist, so that nothing can be created in it.

        Raises:
            OSError: It cannot be read, or another program has locked it.
        """
        try:
            descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise OSError(error.errno, f"cannot block the creation of names in {top}: {error.strerror}") from error
        try:
            _share(descriptor, top, _PATIENCE)
            return cls(descriptor, _with_targets(top, names))
        except BaseException:
            os.close(descriptor)
            raise

    def fill(self) -> None:
        """Create missing placeholders.

        Raises:
            OSError: One cannot be created. Lack of permission is ignored, because the session lacks it too.
        """
        for name in self.names:
            try:
                _make(self.descriptor, name.split("/"))
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise OSError(error.errno, f"cannot block the creation of {name}: {error.strerror}") from error

    def found(self) -> list[str]:
        """Return the relative paths of existing placeholders."""
        found = []
        for name in self.names:
            parts = name.split("/")
            for depth in range(1, len(parts) + 1):
                with _parent(self.descriptor, parts[:depth]) as parent:
                    if parent is not None and _marked(parent, parts[depth - 1]):
                        found.append("/".join(parts[:depth]))
        return found

    def renew(self, top: str) -> None:
        """Take a reference again after a release, and create missing placeholders.

        Args:
            top: The directory, as this process sees it now.

        Raises:
            OSError: As for `take` and `fill`.
        """
        _share(self.descriptor, top, _SHORT_PATIENCE)
        self.names = tuple(dict.fromkeys((*self.names, *_with_targets(top, self.names))))
        if os.fstat(self.descriptor).st_nlink:  # in a removed directory, nothing can be created
            self.fill()

    def release(self) -> None:
        """Release the reference, and remove the placeholders if it was the last one. Idempotent.

        Only directories that are empty and still marked are removed.
        """
        try:
            # If this fails, the shared lock is lost anyway, and the last session gets the exclusive one.
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        # Others may have blocked other names: usually these.
        for name in {*self.names, *PROTECTED, *SECRET}:
            parts = name.split("/")
            for depth in range(len(parts), 0, -1):
                _remove(self.descriptor, parts[:depth])
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self.descriptor)


def _share(descriptor: int, top: str, patience: float) -> None:
    """Take the shared lock, with a deadline: any process that can read a directory can lock it."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(
                    errno.EWOULDBLOCK,
                    f"{top} is locked (flock) by another program: end it, or use another directory",
                ) from None
            time.sleep(0.001)  # flock has no timeout, and an alarm would disturb init's other work
        except OSError:
            return  # a file system without locks: no session gets the exclusive one either, and placeholders stay


def _with_targets(top: str, names: Iterable[str]) -> list[str]:
    """Return the names, plus the targets of symbolic links among them in the same directory."""
    found = [*names]
    for name in [*found]:
        path = f"{top}/{name}"
        if "/" in name or os.path.islink(path):
            target = os.path.realpath(path)
            if target not in (path, top) and is_inside(target, top):
                found.append(target[len(top) + 1 :])
    return found


def _make(top: int, parts: list[str]) -> None:
    """Create a placeholder for the first missing component of a path, so that nothing can be created in it."""
    for depth in range(1, len(parts) + 1):
        with _parent(top, parts[:depth]) as parent:
            if parent is None:
                return
            try:
                os.mkdir(parts[depth - 1], _MODE, dir_fd=parent)
                return
            except FileExistsError:
                # An existing component is protected as it is. A link is hidden; a placeholder of another session is shared.
                mode = os.lstat(parts[depth - 1], dir_fd=parent).st_mode
                if not stat.S_ISDIR(mode) or is_placeholder(mode):
                    return


def _remove(top: int, parts: list[str]) -> None:
    with _parent(top, parts) as parent:
        if parent is None:
            return
        if _marked(parent, parts[-1]):
            with suppress(OSError):  # it is in use
                os.rmdir(parts[-1], dir_fd=parent)


def _marked(parent: int, name: str) -> bool:
    """Return whether an open directory has a placeholder of this name."""
    try:
        return is_placeholder(os.lstat(name, dir_fd=parent).st_mode)
    except OSError:
        return False


@contextmanager
def _parent(top: int, parts: list[str]) -> Iterator[int | None]:
    """Open the parent directory of a path without following links; None if it does not exist."""
    if len(parts) == 1:
        yield top
        return
    held = top
    try:
        for part in parts[:-1]:
            try:
                following = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
            except OSError:
                yield None
                return
            if held != top:
                os.close(held)
            held = following
        yield held
    finally:
        if held != top:
            os.close(held)
