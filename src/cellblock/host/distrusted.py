"""What sandboxed sessions of this process can write: nothing that lies there is believed without a look."""

from __future__ import annotations

import os
from collections.abc import Iterable

from cellblock.errors import InvalidInputError
from cellblock.sandbox.paths import is_inside

places: set[str] = set()
"""Directories, without symbolic links. They stay when their sessions have ended: so does what was written."""

_MOST_LINKS = 40  # as the kernel has it


def add(directories: Iterable[str]) -> None:
    """Take note of directories that a session can write.

    Args:
        directories: Absolute paths.
    """
    places.update(map(os.path.realpath, directories))


def check_links(name: str, path: str) -> None:
    """Check that no session can have made a link on the way to a path, and so have chosen where it leads.

    Args:
        name: What the caller calls the path, for the error.
        path: The path.

    Raises:
        InvalidInputError: There is such a link.
    """
    link = _link_of_a_session(os.path.abspath(path))
    if link is not None:
        raise InvalidInputError(
            f"{name}: {link} is a symbolic link in a directory that a session can write, and may have been made by one: it is "
            "not followed. If you trust it, pass the path that it leads to"
        )


def _link_of_a_session(path: str) -> str | None:
    """Return the first link on the way to an absolute path that lies where sessions can write."""
    here, ahead = "/", path.split("/")[::-1]
    for _ in range(_MOST_LINKS):
        target = None
        while ahead and target is None:
            part = ahead.pop()
            if part in ("", ".", ".."):
                here = os.path.dirname(here) if part == ".." else here
                continue
            following = os.path.join(here, part)
            try:
                target = os.readlink(following)
            except OSError:  # it is not a link
                here = following
        if target is None:
            return None
        if any(is_inside(here, place) for place in places):
            return following
        if target.startswith("/"):
            here = "/"
        ahead += target.split("/")[::-1]
    return None
