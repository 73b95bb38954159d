"""Directories that sandboxed sessions can or could write. Their content is untrusted."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cellblock.common import config
from cellblock.errors import InvalidInputError
from cellblock.walls.sandbox.paths import is_inside

_LOG = logging.getLogger("cellblock.host")

places: set[str] = set()
"""Directories of this process's sessions, without symbolic links. They stay after their sessions have ended, as do the files
in them."""

_MOST_LINKS = 40  # the limit of Linux
_MOST_RECORDS = 10_000
_MOST_PLACES = 10_000  # above this number, records of removed directories are dropped
_BETWEEN_LOOKS = 1000
"""Number of directories recorded between two checks for too many records."""

_recorded = 0


def add(directories: Iterable[str]) -> None:
    """Record directories that a session can write, for this process and later ones.

    Args:
        directories: Absolute paths.
    """
    for place in map(os.path.realpath, directories):
        if place not in places:
            if len(places) >= _MOST_PLACES and len(places) % _BETWEEN_LOOKS == 0:  # their records stay
                places.intersection_update([one for one in places if os.path.isdir(one)])
            places.add(place)
            _record(place)


def check_links(name: str, path: str) -> None:
    """Check that a path contains no link that a session could have created to choose its target.

    Args:
        name: The caller's name for the path, for the error.
        path: The path.

    Raises:
        InvalidInputError: There is such a link.
    """
    for directory, link in _links(os.path.abspath(path)):
        if any(is_inside(directory, place) for place in places) or _is_recorded(directory):
            raise InvalidInputError(
                f"{name}: {link} is a symbolic link in a directory that a session can write, and may have been made by one: "
                "it is not followed. If you trust it, pass the path of its target"
            )


def _links(path: str) -> Iterator[tuple[str, str]]:
    """Yield each link in an absolute path, after the directory that contains it."""
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
            except OSError:  # not a link
                here = following
        if target is None:
            return
        yield here, following
        if target.startswith("/"):
            here = "/"
        ahead += target.split("/")[::-1]


# -- across programs -----------------------------------------------------------------------------------------------------
#
# A directory's record is a symbolic link to it, named by a hash of its path. Creating one is a single system call, and finding
# one needs no listing, so programs need no lock between them.


def _records() -> Path:
    return config.state_directory() / "writable"


def _record_of(place: str) -> str:
    return hashlib.sha256(os.fsencode(place)).hexdigest()


def _record(place: str) -> None:
    global _recorded
    try:
        records = _records()
        if _recorded % _BETWEEN_LOOKS == 0:
            records.mkdir(mode=0o700, parents=True, exist_ok=True)
            _forget_some(records)
        _recorded += 1
        os.symlink(place, records / _record_of(place))
    except FileExistsError:
        pass  # recorded by an earlier session
    except (OSError, RuntimeError) as error:  # the second: there is no home directory
        _LOG.warning("later programs will not know that a session could write %s: %s", place, error)


def _is_recorded(directory: str) -> bool:
    """Return whether a session of any program could write a directory."""
    try:
        records = _records()
        return any(
            os.path.lexists(records / _record_of(str(place))) for place in (directory, *map(str, Path(directory).parents))
        )
    except RuntimeError:
        return False  # no home directory, so there are no records


def _forget_some(records: Path) -> None:
    """Remove records of removed directories and, above the limit, the oldest ones."""
    entries = [entry for entry in os.scandir(records) if entry.is_symlink()]
    if len(entries) <= _MOST_RECORDS:
        return
    entries.sort(key=lambda entry: (entry.is_dir(), entry.stat(follow_symlinks=False).st_mtime))
    gone = sum(not entry.is_dir() for entry in entries)
    for entry in entries[: max(gone, len(entries) - _MOST_RECORDS)]:
        Path(entry.path).unlink(missing_ok=True)  # another program may do the same
