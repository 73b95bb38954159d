"""Removes files and whole folders of any depth without following links, recursion, or one descriptor per level."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator

from cellblock.common.open_flags import ENTER, LIST
from cellblock.errors import FilesError
from cellblock.host.files.beneath import CHANGED, Walk

_BATCH = 1000
_MOST = 1_000_000
"""Maximum entries that one call removes: the session's code may be making them as fast as they are removed."""

_IDLE = 100
"""Rounds without entries before giving up: code may have refilled the folder each time, so one is not enough."""


def remove_tree(directory: int, name: str, walk: Walk) -> Generator[None, None, None]:
    """Remove an entry of a directory, with everything in it.

    A subfolder is moved to the top before it is emptied. This keeps the work flat: a tree of a million levels costs two
    descriptors. Alternatives use ``..``, which can lead out, or recursion, which can overflow the stack.

    Args:
        directory: The open directory.
        name: The name in it.
        walk: The walk to use.

    Yields:
        After each step.

    Raises:
        OSError: An entry cannot be removed; earlier entries were removed.
        FilesError: There are more entries than one call removes.
    """
    if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
        os.unlink(name, dir_fd=directory)
        return
    _make_ours(directory, name, walk)
    top = walk(directory, (name,), LIST)
    try:
        for count, _step in enumerate(_clear(directory, name, top, walk)):
            if count >= _MOST:
                what = f"{_MOST:,} entries were removed, and more remain: try again, and stop code that creates them"
                raise FilesError(f"cannot remove all of {name!r}: {what}", path=name, errno=errno.ENOTEMPTY)
            yield
    finally:
        os.close(top)


def _clear(directory: int, name: str, top: int, walk: Walk) -> Generator[None, None, None]:
    """Empty a folder until it can be removed. Every round yields, even if code keeps refilling it."""
    idle = 0
    while True:
        entries = _some(top)
        idle = 0 if entries else idle + 1
        for entry, is_folder in entries:
            try:
                if is_folder:
                    yield from _flatten(entry, top, walk)
                else:
                    os.unlink(entry, dir_fd=top)
            except OSError as error:
                if error.errno not in CHANGED:
                    raise
            yield
        try:
            os.rmdir(name, dir_fd=directory)
        except NotADirectoryError:
            os.unlink(name, dir_fd=directory)  # replaced since it was opened: remove the replacement
            return
        except OSError as error:
            # An empty folder that cannot be removed was replaced by another one: more rounds would not help.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or idle >= _IDLE:
                raise
        else:
            return
        yield


def _flatten(name: str, top: int, walk: Walk) -> Generator[None, None, None]:
    """Remove a folder in the top folder, after moving its subfolders to the top, where they are found later."""
    _make_ours(top, name, walk)
    fd = walk(top, (name,), LIST)
    try:
        while entries := _some(fd):
            for entry, is_folder in entries:
                try:
                    if is_folder:
                        _make_ours(fd, entry, walk)
                        os.rename(entry, f".cellblock-{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=top)
                    else:
                        os.unlink(entry, dir_fd=fd)
                except OSError as error:
                    if error.errno not in CHANGED:
                        raise
                yield
    finally:
        os.close(fd)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # refilled: it is found again
            raise


def _some(fd: int) -> list[tuple[str, bool]]:
    """Return some entries. The names of a folder with millions must not be in memory at once."""
    found = []
    with os.scandir(fd) as entries:
        for entry in entries:
            found.append((entry.name, entry.is_dir(follow_symlinks=False)))
            if len(found) >= _BATCH:
                break
    return found


def _make_ours(fd: int, name: str, walk: Walk) -> None:
    """Add the permissions for emptying or moving one of our folders, if its mode lacks them."""
    info = os.lstat(name, dir_fd=fd)
    if info.st_mode & 0o700 == 0o700 or not hasattr(os, "O_PATH"):
        return
    folder = walk(fd, (name,), ENTER)  # change the open folder: by name it could be a link to the host's files
    try:
        os.chmod(f"/proc/self/fd/{folder}", 0o700)
    except OSError:
        pass  # another owner, or no /proc: the removal itself reports it
    finally:
        os.close(folder)
