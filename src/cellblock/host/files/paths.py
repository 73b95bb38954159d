"""Validation of paths: in the workspace, and on the caller's disk."""

from __future__ import annotations

import functools
import os
from pathlib import PurePath

from cellblock.errors import FilesError, InvalidInputError
from cellblock.host.files.beneath import Tree, Walk
from cellblock.host.files.failures import telling
from cellblock.host.files.info import Parts
from cellblock.walls.sandbox.paths import is_inside


class Workspace:
    """The directory that a session may write.

    It is opened for each operation, so that an idle session holds no descriptor. The trusted side gave its path, but another
    session may have it in *its* workspace and replace it with a link. Each open therefore checks that it is the same
    directory.
    """

    def __init__(self, root: str | os.PathLike[str], max_depth: int, walk: Walk | None, alias: str = "") -> None:
        self.path = os.path.abspath(os.fspath(root))
        self._alias = alias
        self._max_depth = max_depth
        self._walk = walk
        self._identity: tuple[int, int] | None = None

    def open(self) -> Tree:
        """Open the workspace as a tree.

        Raises:
            FilesError: It does not exist, is not a directory, or is another directory than before.
        """
        with telling("open the workspace", self.path):
            tree = Tree.at(self.real, self._walk)
        info = os.fstat(tree.fd)
        identity = info.st_dev, info.st_ino
        if self._identity is None:
            self._identity = identity
        if identity != self._identity:
            os.close(tree.fd)
            raise FilesError(
                f"the workspace {self.path!r} is not the same directory as at first; make a new session for this one",
                path=self.path,
            )
        return tree

    @functools.cached_property
    def real(self) -> str:
        """The path without links."""
        return os.path.realpath(self.path)

    def parts(self, path: str | PurePath) -> Parts:
        """Return the components of a path in the workspace.

        Raises:
            InvalidInputError: The path is outside the workspace.
        """
        if not isinstance(path, (str, PurePath)):
            raise InvalidInputError(f"path must be a string or a Path, not {type(path).__name__}")
        text = str(path)
        if not text:
            raise InvalidInputError("path is empty; '.' is the workspace itself")
        if "\0" in text:
            raise InvalidInputError(f"the path {text!r} has a NUL character, which no file name can contain")
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise InvalidInputError(f"the path {text!r} has a lone surrogate that does not stand for a byte") from None
        if text.startswith("/"):
            inside = self._named(text)
            if inside is None:
                root = self._alias or self.path
                raise InvalidInputError(
                    f"the path {text!r} is not in the workspace {root!r}; use one relative to the workspace"
                )
            text = inside
        parts = tuple(name for name in text.split("/") if name not in ("", "."))
        if ".." in parts:
            raise InvalidInputError(f"the path {text!r} has a '..'; write it without '..', relative to the workspace")
        if len(parts) > self._max_depth:
            raise InvalidInputError(f"the path is {len(parts)} folders deep, over the limit of {self._max_depth} (max_depth)")
        return parts

    def inner(self, path: str | PurePath, what: str) -> Parts:
        """Return a path in the workspace other than the workspace itself."""
        parts = self.parts(path)
        if not parts:
            raise InvalidInputError(f"path is the workspace itself; name the {what} in it")
        return parts

    def has(self, path: str) -> bool:
        """Return whether an absolute path is in the workspace."""
        return self._named(path) is not None

    def _named(self, text: str) -> str | None:
        """Return the rest of a path in the workspace, also of its path in the session."""
        if self._alias and is_inside(text, self._alias):
            return text[len(self._alias) :]
        return self._inside(text)

    def _inside(self, text: str) -> str | None:
        for root in (self.path, self.real):
            if is_inside(text, root):
                return text[len(root) :]
        return None

    def local(self, path: str | os.PathLike[str], *, follow: bool) -> tuple[str | None, Parts]:
        """Resolve a path on the caller's disk. Return a directory to open and the path in it.

        The caller's own links are followed. But by default the workspace is the current directory, where the session's code
        may have created ``out.csv`` as a link to the caller's keys. For a path in the workspace, the directory is None, and no
        link is followed.

        Args:
            path: The path.
            follow: Whether to follow a final link: yes for reading, no for writing.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidInputError(f"local must be a path, not {type(path).__name__}")
        text = os.fspath(path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise InvalidInputError(f"local must be a path on this machine, not {text!r}")
        absolute = os.path.abspath(text)
        inside = self._inside(absolute)
        if inside is None:
            head, name = os.path.split(absolute)
            absolute = os.path.realpath(absolute) if follow else os.path.join(os.path.realpath(head), name)
            inside = self._inside(absolute)
        if inside is not None:
            return None, tuple(name for name in inside.split("/") if name)
        head, name = os.path.split(absolute)
        return head, (name,) if name else ()


def name_of(local: str | os.PathLike[str]) -> str:
    """Return the name of a file on the caller's disk; for ``.`` the current directory's name."""
    return os.path.basename(os.path.abspath(local))
