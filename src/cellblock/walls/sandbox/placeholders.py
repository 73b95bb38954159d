"""Blocks protected names that do not exist: an empty directory takes the place of each.

A mount needs a mount point. Placeholders are made before untrusted code runs, and removed by the last session of that
directory, whichever program it belongs to. Standard library only, and trusted processes only.
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

# The sticky bit marks them: mkdir sets it, so a placeholder is never without its mark, and no other directory has this mode by
# chance. A user of the directory changes its mode, and so takes it over.
_MODE = 0o1500
_USUAL = frozenset((*PROTECTED, ENV)) - MAKEABLE
_PATIENCE = 5.0
"""Seconds to wait while another session removes placeholders, which takes a fraction of a millisecond."""
_SHORT_PATIENCE = 1.0
"""The same for a session that has begun: its init answers nothing else meanwhile."""


def is_placeholder(mode: int) -> bool:
    """Whether this is a placeholder's mode, ignoring a set-group-id bit inherited from its parent."""
    return stat.S_ISDIR(mode) and stat.S_IMODE(mode) & ~stat.S_ISGID == _MODE


def is_project(top: str) -> bool:
    """Return whether a directory is a project: part of a repository, or it contains one of the protected names.

    Only in a project do programs look for the others. Elsewhere a placeholder is a meaningless entry that misleads language
    models.

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
        names: Paths below it.
    """
    return tuple(names) if is_project(top) else tuple(name for name in names if name not in _USUAL)


class Hold:
    """A session's share in the placeholders of one directory: they exist as long as any session has a share.

    It is a shared lock (flock) on the directory itself, held by a descriptor that can be passed to other processes: it ends
    when the last of them has ended. It needs no file that could be left behind.

    Attributes:
        descriptor: The directory.
        names: Paths below it to block.
    """

    def __init__(self, descriptor: int, names: Iterable[str]) -> None:
        self.descriptor = descriptor
        self.names = tuple(names)

    @classmethod
    def take(cls, top: str, names: Iterable[str]) -> Self | None:
        """Take a share; no placeholder is made yet.

        Args:
            top: The directory, absolute and without symbolic links.
            names: Paths below it, without ``..``.

        Returns:
            The hold; None if the directory does not exist: then nothing can be made in it.

        Raises:
            OSError: It cannot be read, or another program has locked it.
        """
        try:
            descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise OSError(error.errno, f"cannot keep names in {top} from being created: {error.strerror}") from error
        try:
            _share(descriptor, top, _PATIENCE)
            return cls(descriptor, _with_targets(top, names))
        except BaseException:
            os.close(descriptor)
            raise

    def fill(self) -> None:
        """Make the missing placeholders.

        Raises:
            OSError: One cannot be made, and not for lack of permission: without that, the session could not make it either.
        """
        for name in self.names:
            try:
                _make(self.descriptor, name.split("/"))
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise OSError(error.errno, f"cannot keep {name} from being created: {error.strerror}") from error

    def found(self) -> list[str]:
        """Return the paths of the placeholders that exist, below the directory."""
        found = []
        for name in self.names:
            parts = name.split("/")
            for depth in range(1, len(parts) + 1):
                with _parent(self.descriptor, parts[:depth]) as parent:
                    if parent is not None and _marked(parent, parts[depth - 1]):
                        found.append("/".join(parts[:depth]))
        return found

    def renew(self, top: str) -> None:
        """After a release: take a share again, and make the missing placeholders.

        Args:
            top: The directory, as this process sees it now.

        Raises:
            OSError: As for `take` and `fill`.
        """
        _share(self.descriptor, top, _SHORT_PATIENCE)
        self.names = tuple(dict.fromkeys((*self.names, *_with_targets(top, self.names))))
        if os.fstat(self.descriptor).st_nlink:  # in a directory that was removed, nothing can be made
            self.fill()

    def release(self) -> None:
        """Give up the share, and remove the placeholders if it was the last one. It can be repeated.

        Only directories that are empty and still marked are removed.
        """
        try:
            # If this fails, the lock is gone all the same, and the last session gets it.
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
        """Close the descriptor."""
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
    """Return the names, plus the targets of symbolic links among them that lie in the same directory."""
    found = [*names]
    for name in [*found]:
        path = f"{top}/{name}"
        if "/" in name or os.path.islink(path):
            target = os.path.realpath(path)
            if target not in (path, top) and is_inside(target, top):
                found.append(target[len(top) + 1 :])
    return found


def _make(top: int, parts: list[str]) -> None:
    """Make a placeholder for the first missing component of a path; nothing can be made below it."""
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
    """Whether there is a placeholder of this name in an open directory."""
    try:
        return is_placeholder(os.lstat(name, dir_fd=parent).st_mode)
    except OSError:
        return False


@contextmanager
def _parent(top: int, parts: list[str]) -> Iterator[int | None]:
    """Open the directory that contains a path, without following links; None if there is no such directory."""
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
