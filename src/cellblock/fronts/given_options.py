"""Options of a session as callers write them: paths are relative to the caller's directory, and one name is a list of one.

Standard library only: the command line has no time for more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

PATHS = ("working_dir", "images_dir", "spill_dir", "rules", "sandbox_config")
"""Options that can be paths."""

_LISTS = ("allow_hosts", "packages", "preload", "tools")
_PATH_LISTS = ("read", "write")


def as_meant(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as another process can use them, whose current directory is another one.

    Args:
        options: The options, as a program or a command line gives them.
    """
    return {name: _as_meant(name, value) for name, value in options.items()}


def _as_meant(name: str, value: Any) -> Any:
    if name in _PATH_LISTS and isinstance(value, str | os.PathLike | list | tuple):
        paths = [value] if isinstance(value, str | os.PathLike) else value
        return [os.path.abspath(os.path.expanduser(path)) if isinstance(path, str | os.PathLike) else path for path in paths]
    if not isinstance(value, str) or not value:
        return value
    if name in PATHS:
        return os.path.abspath(os.path.expanduser(value))
    if name == "python" and (os.sep in value or value.startswith("~")):  # else it is a command, which PATH finds
        return os.path.abspath(os.path.expanduser(value))
    return [value] if name in _LISTS else value
