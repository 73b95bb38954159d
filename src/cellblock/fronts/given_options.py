"""Conversion of session options from callers: relative paths become absolute, and a single name becomes a list.

Standard library only: the command line has no time for more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cellblock.common.sandbox_options import PATHS as PATH_LISTS
from cellblock.common.secret import parse_secrets

PATHS = ("working_dir", "images_dir", "spill_dir", "rules", "sandbox_config")
"""Options that can be paths."""

_LISTS = ("allow_hosts", "packages", "preload", "tools")


def as_meant(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with absolute paths, for use in another process.

    Args:
        options: The options, as given by a program or a command line.
    """
    return {name: _as_meant(name, value) for name, value in options.items()}


def _as_meant(name: str, value: Any) -> Any:
    if name == "secrets":
        return parse_secrets(value)
    if name == "environment":
        from cellblock.common.environments import PackageSet, read_environment

        found = read_environment(value)
        return found.for_daemon() if isinstance(found, PackageSet) else found
    if name in PATH_LISTS:
        return [_absolute(path) for path in value] if isinstance(value, list | tuple) else [_absolute(value)]
    if not isinstance(value, str) or not value:
        return value
    if name in PATHS:
        return _absolute(value)
    if name == "python" and (os.sep in value or value.startswith("~")):  # otherwise a command, which PATH finds
        return _absolute(value)
    return [value] if name in _LISTS else value


def _absolute(path: Any) -> Any:
    """Return an absolute path. Other values, such as an empty text, are unchanged, and refused later."""
    return os.path.abspath(os.path.expanduser(path)) if isinstance(path, str | os.PathLike) and path else path
