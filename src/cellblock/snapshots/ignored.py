"""Which names in a workspace are ignored: those of a pattern anywhere, and paths."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

OURS = ".cellblock-"
"""What the names of files and folders begin with that the host makes in a workspace and removes again."""


class Ignored:
    """What is ignored.

    Attributes:
        anywhere: Whether a name is ignored in every folder; truthy if it is.
    """

    def __init__(self, ignore: Iterable[str]) -> None:
        """Take patterns.

        Args:
            ignore: Patterns of names, and paths below the workspace that begin with a slash.
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
        """Return the names that are ignored in one folder, in addition to those that are everywhere."""
        return self._in.get(path, set())
