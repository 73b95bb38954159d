"""Converts callers' arguments to the fields of daemon requests."""

from __future__ import annotations

import os


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as the daemon needs it, which has another current directory."""
    return os.path.abspath(os.path.expanduser(path))
