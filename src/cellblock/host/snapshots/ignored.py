"""Names that snapshots ignore: patterns that apply anywhere, and paths."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping

OURS = ".cellblock-"
"""Prefix of files and folders that the host creates in a workspace and removes again."""


class Ignored:
    """The ignored names.

    Attributes:
        anywhere: Matches names ignored in every folder; truthy on a match.
    """

    def __init__(self, ignore: Iterable[str], makeable: Iterable[str] = ()) -> None:
        """Compile the patterns.

        Args:
            ignore: Name patterns, and paths from the top of the workspace with a leading slash.
            makeable: More such paths, which the session can create.
        """
        ignore = [*ignore]
        names = [f"{OURS}*", *(name for name in ignore if not name.startswith("/"))]
        self.anywhere = re.compile("|".join(map(fnmatch.translate, names))).match
        self._in: dict[str, dict[str, bool]] = {}
        for paths, can_create in (((path for path in ignore if path.startswith("/")), False), (makeable, True)):
            for path in paths:
                folder, _, name = path.strip("/").rpartition("/")
                self._in.setdefault(folder, {})[name] = can_create

    def in_folder(self, path: str) -> Mapping[str, bool]:
        """Return the names ignored only in one folder, each with whether the session can create it."""
        return self._in.get(path, {})

    def find(self, path: str) -> str | None:
        """Return the topmost part of a path that is ignored as a path, or None."""
        folder = ""
        for name in path.split("/"):
            where = f"{folder}/{name}" if folder else name
            if name in self.in_folder(folder):
                return where
            folder = where
        return None
