"""Names that snapshots ignore: patterns that apply anywhere, and paths."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

OURS = ".cellblock-"
"""Prefix of files and folders that the host creates in a workspace and removes again."""


class Ignored:
    """The ignored names.

    Attributes:
        anywhere: Matches names ignored in every folder; truthy on a match.
    """

    def __init__(self, ignore: Iterable[str]) -> None:
        """Compile the patterns.

        Args:
            ignore: Name patterns, and paths from the top of the workspace with a leading slash.
        """
        ignore = [*ignore]
        names = [f"{OURS}*", *(name for name in ignore if not name.startswith("/"))]
        self.anywhere = re.compile("|".join(map(fnmatch.translate, names))).match
        self._in: dict[str, set[str]] = {}
        for path in ignore:
            if path.startswith("/"):
                folder, _, name = path.strip("/").rpartition("/")
                self._in.setdefault(folder, set()).add(name)

    def in_folder(self, path: str) -> set[str]:
        """Return the names ignored only in one folder."""
        return self._in.get(path, set())
