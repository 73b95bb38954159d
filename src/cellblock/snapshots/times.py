"""When things in a workspace were changed, by the times of the system, which no program can set."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from cellblock.snapshots.beneath import open_parent

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Spans of time: from when until when, in nanoseconds of the clock that file systems read."""

_SECOND = 10**9


def changed_within(top: int, spans: Spans) -> Callable[[str], bool]:
    """Return a function that tells whether something was last changed within one of these spans of time.

    Args:
        top: The workspace, opened.
        spans: The spans.
    """

    def changed(path: str) -> bool:
        try:
            with open_parent(top, path) as (parent, name):
                last = os.lstat(name, dir_fd=parent).st_ctime_ns
        except OSError:
            return True
        # Some file systems count seconds, or pairs of seconds.
        coarse = 0 if last % _SECOND else 2 * _SECOND
        return any(began <= last + coarse and last <= ended for began, ended in spans)

    return changed
