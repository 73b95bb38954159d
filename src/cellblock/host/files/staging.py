"""New files and folders under a temporary name: moved into place when they are complete, and else removed."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from typing import Self

from cellblock.errors import FilesError
from cellblock.host.files.beneath import CREATE, ENTER, LIST, Tree
from cellblock.host.files.failures import telling
from cellblock.host.files.info import FileLimits, Parts
from cellblock.host.files.removal import remove_tree

log = logging.getLogger("cellblock")


class Staging:
    """One new file or folder on its way to its place; a context manager that leaves nothing behind.

    It is in the deepest folder that exists above its place (or is its place): so it is on the same file system, a
    rename is all that is needed at the end, and no folder is made for what then fails.

    Only names that the session's code cannot guess are used, but it can list them, and put other things there. That
    is why everything goes through descriptors: it may spoil what it could have spoilt a moment later, and no more.
    """

    def __init__(self, tree: Tree, parts: Parts, *, folder: bool) -> None:
        self._tree = tree
        self._parts = parts
        self._name = f".cellblock-{secrets.token_hex(8)}"
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
        try:
            for _step in remove_tree(self._beside, self._name, self._tree.walk):
                pass
        except FileNotFoundError:
            pass  # it is in its place, or was never made
        except (OSError, FilesError) as error:
            # Not raised: the error that brought us here says more. This happens only if code works against us all the time.
            log.warning("%r is left in a workspace: %s", self._name, error)
        finally:
            os.close(self._beside)

    def file(self, mode: int) -> int:
        """Make the file; return its descriptor."""
        return os.open(self._name, CREATE, mode & 0o777, dir_fd=self._beside)

    def folder(self) -> Tree:
        """Make the folder; return it as a tree."""
        os.mkdir(self._name, dir_fd=self._beside)
        fd = self._tree.walk(self._beside, (self._name,), LIST)
        return Tree(fd, self._tree.walk, os.path.join(self._tree.label, *self._parts))

    def check_place(self, overwrite: bool) -> None:
        """Check that nothing is in the file's place that may not be replaced."""
        check_replaceable(status(self._tree, self._parts), stat.S_IFREG, overwrite)

    def commit_file(self, overwrite: bool) -> None:
        """Put the file in its place, whole and at once."""
        parent = self._tree.make_directories(self._parts[:-1])
        try:
            # A courtesy to the caller, not a defence: whatever is put there after the check, a rename replaces the name
            # and follows nothing.
            self.check_place(overwrite)
            os.rename(self._name, self._parts[-1], src_dir_fd=self._beside, dst_dir_fd=parent)
        finally:
            os.close(parent)

    def commit_folder(self, staged: Tree, limits: FileLimits, overwrite: bool, verb: str) -> None:
        """Put the folder in its place: at once if nothing is there, else entry by entry into what is there.

        Not in slices, so that no cancellation stops it half-way.
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
            _check_merge(staged, target, limits, overwrite, verb)
            _merge(staged, target, verb)


def status(tree: Tree, parts: Parts) -> os.stat_result | None:
    """Return what something is, or None if nothing is."""
    try:
        return tree.lstat(parts)
    except FileNotFoundError:
        return None


def check_replaceable(existing: os.stat_result | None, kind: int, overwrite: bool) -> None:
    """Check that something new may take a place.

    Args:
        existing: What is there.
        kind: What is to come, as in `stat.S_IFMT`.
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


def _check_merge(staged: Tree, target: Tree, limits: FileLimits, overwrite: bool, verb: str) -> None:
    """Check that every entry may take its place, before the first one does."""
    for parts, info in staged.scan((), limits, verb):
        with telling(verb, target.name(parts)):
            check_replaceable(status(target, parts), stat.S_IFMT(info.st_mode), overwrite)


def _merge(staged: Tree, target: Tree, verb: str) -> None:
    """Move every entry to its place: whole folders where there is none yet."""
    pending: list[Parts] = [()]
    while pending:
        below = pending.pop()
        with telling(verb, target.name(below)), staged.subtree(below, LIST) as source, target.subtree(below) as place:
            for name in os.listdir(source.fd):
                existing = status(place, (name,))
                if existing is not None and stat.S_ISDIR(existing.st_mode):
                    pending.append((*below, name))
                    continue
                os.rename(name, name, src_dir_fd=source.fd, dst_dir_fd=place.fd)
