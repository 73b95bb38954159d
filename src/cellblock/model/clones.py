"""The changes of sessions that work in a clone of a repository."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cellblock.model.plain import Plain

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""The name of a commit."""


@dataclass(frozen=True, slots=True)
class CloneChanges(Plain):
    """The changes since the commit that a clone began with, committed or not.

    Attributes:
        base: That commit.
        files: The changed paths.
        patch: The changes as a patch of git.
    """

    base: str
    files: tuple[str, ...]
    patch: str


@dataclass(frozen=True, slots=True)
class Fetched(Plain):
    """The commits that were fetched from a clone.

    Attributes:
        ref: The reference in the project's repository.
        commit: The commit that it names.
        commits: The number of commits since the clone's first one.
    """

    ref: str
    commit: str
    commits: int


@dataclass(frozen=True, slots=True)
class Applied(Plain):
    """The changes that were applied to a working copy.

    Attributes:
        files: The changed paths.
        conflicts: The paths with conflict markers, after a three-way merge.
    """

    files: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
