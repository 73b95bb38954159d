"""Converts callers' arguments to the fields of daemon requests."""

from __future__ import annotations

import os

from cellblock.common.urls import is_url


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as the daemon needs it, which has another current directory; a URL as it is."""
    if isinstance(path, str) and is_url(path):
        return path
    return os.path.abspath(os.path.expanduser(path))
