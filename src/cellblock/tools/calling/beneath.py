"""Reads files below a directory without following links, because code in a session may have created them.

Standard library only, because it works inside a session and outside.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe in place of a file would block.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def folder(root: str | os.PathLike[str], *names: str, make: bool = False) -> Iterator[int]:
    """Open a folder, step by step from a directory that is not a link either.

    Args:
        root: The directory. The path to it is the caller's, and may contain links.
        names: The folders on the path, outermost first.
        make: Whether to create missing folders.

    Raises:
        OSError: The folder is missing, or a part of the path is a link or not a folder.
    """
    if make:
        Path(root).parent.mkdir(parents=True, exist_ok=True)
    held = _step(os.fspath(root), None, make)
    try:
        for name in names:
            following = _step(name, held, make)
            os.close(held)
            held = following
        yield held
    finally:
        os.close(held)


def _step(name: str, above: int | None, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, dir_fd=above)
        except FileExistsError:
            pass  # any object: only folders are opened
    return os.open(name, _FOLDER, dir_fd=above)


def folders_in(root: str | os.PathLike[str], *names: str) -> list[str]:
    """Return the subfolders of a folder whose names are Python identifiers, sorted; see `folder`."""
    with folder(root, *names) as held, os.scandir(held) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name.isidentifier())


def read(root: str | os.PathLike[str], *names: str, most: int) -> bytes:
    """Read a file, or its first bytes.

    Args:
        root: As for `folder`.
        names: The folders on the path, and the file.
        most: The maximum number of bytes.

    Raises:
        OSError: The file is missing or not a regular file, or a part of the path is a link.
    """
    with folder(root, *names[:-1]) as held:
        return read_at(held, names[-1], most)


def read_at(above: int, name: str, most: int) -> bytes:
    """Read a file in an open folder, or its first bytes. Raises as `read`."""
    opened = os.open(name, _FILE, dir_fd=above)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(f"{name} is not a regular file")
        with open(opened, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(opened)  # also of a folder, which `open` would refuse and leave open


def exists(above: int, name: str) -> bool:
    """Return whether a name exists in an open folder."""
    try:
        os.lstat(name, dir_fd=above)
    except FileNotFoundError:
        return False
    return True


def write(above: int, name: str, text: str) -> None:
    """Write a file in an open folder atomically, in place of an existing one."""
    new = f".{name}.{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(new, _NEW, 0o644, dir_fd=above), "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(new, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        _remove(above, new)
        raise


def write_folder(above: int, name: str, files: Mapping[str, str]) -> None:
    """Write a folder of files in an open folder atomically, in place of an existing one."""
    new, old = f".{name}.{secrets.token_hex(8)}", f".{name}.{secrets.token_hex(8)}.old"
    try:
        make_folder(above, new, {file: text.encode() for file, text in files.items()})
        if exists(above, name):
            os.rename(name, old, src_dir_fd=above, dst_dir_fd=above)
        os.rename(new, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        _remove(above, new)
        raise
    _remove(above, old)


def make_folder(above: int, name: str, files: Mapping[str, bytes]) -> None:
    """Create a folder of files in an open folder."""
    os.mkdir(name, 0o755, dir_fd=above)
    held = os.open(name, _FOLDER, dir_fd=above)
    try:
        for file, content in files.items():
            with os.fdopen(os.open(file, _NEW, 0o644, dir_fd=held), "wb") as out:
                out.write(content)
    finally:
        os.close(held)


def make_package(above: int) -> None:
    """Create an empty ``__init__.py`` in an open folder, unless the name exists."""
    try:
        os.close(os.open("__init__.py", _NEW, 0o644, dir_fd=above))
    except FileExistsError:
        pass


def _remove(above: int, name: str) -> None:
    """Remove a file, or a folder with its content, if it exists."""
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # macOS raises the latter for a folder
        shutil.rmtree(name, ignore_errors=True, dir_fd=above)
