"""New files and folders under a temporary name: renamed when complete, otherwise removed."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from typing import Self

from cellblock.common.new_mode import create
from cellblock.common.open_flags import ENTER, LIST, READ, held
from cellblock.common.whole_file import claimed, give_name, open_unnamed, sync
from cellblock.errors import FilesError
from cellblock.host.files.beneath import CREATE, Tree
from cellblock.host.files.failures import telling
from cellblock.host.files.info import FileLimits, Parts
from cellblock.host.files.removal import remove_tree

log = logging.getLogger("cellblock")

_NAME = re.compile(r"\.cellblock-[0-9a-f]{16}")


def remove_unclaimed(workspace: str) -> None:
    """Remove what operations of killed processes left at the top of a workspace."""
    with suppress(OSError), Tree.at(workspace) as tree:
        for name in filter(_NAME.fullmatch, os.listdir(tree.fd)):
            try:
                with held(tree.open((name,), READ)) as fd:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    for _step in remove_tree(tree.fd, name, tree.walk):
                        pass
            except (OSError, FilesError) as error:
                log.debug("%r stays in a workspace: %s", name, error)


class Staging:
    """One new file or folder, staged under a temporary name; a context manager that leaves nothing behind.

    It is staged in the deepest existing parent folder of its path (or the target folder itself): on the same file system, so
    that one rename is enough, and a failed operation creates no folder.

    Its name cannot be guessed, but the session's code can list it, and replace it. Therefore all access uses descriptors: the
    code can only damage what it could damage a moment later anyway.
    """

    def __init__(self, tree: Tree, parts: Parts, *, folder: bool) -> None:
        self._tree = tree
        self._parts = parts
        self._name = f".cellblock-{secrets.token_hex(8)}"
        self._file: int | None = None
        """The file, as long as it has no name."""
        self._beside = self._deepest(parts if folder else parts[:-1])

    def _deepest(self, parts: Parts) -> int:
        while True:
            try:
                return self._tree.open(parts, ENTER)
            except FileNotFoundError:
                if not parts:
                    raise
                parts = parts[:-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was not renamed."""
        try:
            for _step in remove_tree(self._beside, self._name, self._tree.walk):
                pass
        except FileNotFoundError:
            pass  # it is in place, or was never created
        except (OSError, FilesError) as error:
            # Not raised: the original error says more. This happens only if code keeps working against us.
            log.warning("%r is left in a workspace: %s", self._name, error)
        finally:
            os.close(self._beside)
            if self._file is not None:
                os.close(self._file)

    def file(self, mode: int) -> int:
        """Create the file. Return its descriptor."""
        if (unnamed := open_unnamed(self._beside, os.O_WRONLY, mode & 0o777)) is None:
            return claimed(create(self._name, CREATE, mode & 0o777, dir_fd=self._beside))
        self._file = os.dup(claimed(unnamed))  # the claim counts once it has its temporary name
        return unnamed

    def folder(self) -> Tree:
        """Create the folder. Return it as a tree."""
        os.mkdir(self._name, dir_fd=self._beside)
        fd = claimed(self._tree.walk(self._beside, (self._name,), LIST))
        return Tree(fd, self._tree.walk, os.path.join(self._tree.label, *self._parts))

    def check_place(self, overwrite: bool) -> None:
        """Check that the file's path is free or may be replaced."""
        check_replaceable(status(self._tree, self._parts), stat.S_IFREG, overwrite)

    def commit_file(self, overwrite: bool) -> None:
        """Rename the file to its path atomically."""
        parent = self._tree.make_directories(self._parts[:-1])
        try:
            # For convenience, not as a defence: a rename replaces a file that appears after the check, and follows nothing.
            self.check_place(overwrite)
            self._sync()
            os.rename(self._name, self._parts[-1], src_dir_fd=self._beside, dst_dir_fd=parent)
        finally:
            os.close(parent)

    def _sync(self) -> None:
        """Wait until the file is on the disk. Otherwise, it can be empty after a power failure."""
        if self._file is not None:
            sync(self._file)
            give_name(self._file, self._name, self._beside)
            return
        with held(self._tree.walk(self._beside, (self._name,), READ)) as file:
            sync(file)

    def commit_folder(self, staged: Tree, limits: FileLimits, overwrite: bool) -> None:
        """Rename the folder to its path if that is free. Otherwise, move it entry by entry into the existing folder.

        There are no slices, so that no cancellation stops it half-way.
        """
        existing = status(self._tree, self._parts)
        if existing is not None and not stat.S_ISDIR(existing.st_mode):
            check_replaceable(existing, stat.S_IFDIR, overwrite)
        if existing is None:
            parent = self._tree.make_directories(self._parts[:-1])
            try:
                os.rename(self._name, self._parts[-1], src_dir_fd=self._beside, dst_dir_fd=parent)
            finally:
                os.close(parent)
            return
        with self._tree.subtree(self._parts) as target:
            _check_merge(staged, target, limits, overwrite)
            _merge(staged, target)


def status(tree: Tree, parts: Parts) -> os.stat_result | None:
    """Return the status of something, or None if it does not exist."""
    try:
        return tree.lstat(parts)
    except FileNotFoundError:
        return None


def check_replaceable(existing: os.stat_result | None, kind: int, overwrite: bool) -> None:
    """Check that a new entry may replace an existing one.

    Args:
        existing: The status of the existing entry.
        kind: The kind of the new entry, as in `stat.S_IFMT`.
        overwrite: Whether files may replace files.
    """
    if existing is None:
        return
    found = stat.S_IFMT(existing.st_mode)
    if found == stat.S_IFLNK:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if found == kind == stat.S_IFREG:
        if not overwrite:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    elif found != kind:
        codes = {stat.S_IFDIR: errno.EISDIR, stat.S_IFREG: errno.ENOTDIR}
        code = codes.get(found, errno.ENXIO)
        raise OSError(code, os.strerror(code))


def _check_merge(staged: Tree, target: Tree, limits: FileLimits, overwrite: bool) -> None:
    """Check, before the first move, that every entry may be moved."""
    for parts, info in staged.scan((), limits, "write"):
        with telling("write", target.name(parts)):
            check_replaceable(status(target, parts), stat.S_IFMT(info.st_mode), overwrite)


def _merge(staged: Tree, target: Tree) -> None:
    """Move every entry: a whole folder if it is missing."""
    pending: list[Parts] = [()]
    while pending:
        below = pending.pop()
        with telling("write", target.name(below)), staged.subtree(below, LIST) as source, target.subtree(below) as place:
            for name in os.listdir(source.fd):
                existing = status(place, (name,))
                if existing is not None and stat.S_ISDIR(existing.st_mode):
                    pending.append((*below, name))
                    continue
                os.rename(name, name, src_dir_fd=source.fd, dst_dir_fd=place.fd)
