"""Converts callers' arguments to the fields of daemon requests."""

from __future__ import annotations

import os

from cellblock.errors import InvalidInputError, shown


def milliseconds(timeout: float) -> int:
    """Return a timeout in milliseconds; -1 for as good as none."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidInputError(f"timeout must be a positive number of seconds, not {shown(timeout)}")
    return -1 if timeout > 1e9 else max(round(timeout * 1000), 1)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as the daemon needs it, which has another current directory."""
    return os.path.abspath(os.path.expanduser(path))
