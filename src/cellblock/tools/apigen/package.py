"""A generated package on disk, written atomically, and only if it has changed.

Sessions can usually write to the directory of packages. Links in it are therefore not followed, and files that were not
generated are not replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.errors import InvalidInputError
from cellblock.tools.apigen.names import check_server_name
from cellblock.tools.apigen.render import Module, render, render_ambiguous, render_package
from cellblock.tools.apigen.schema import cut
from cellblock.tools.calling import beneath
from cellblock.tools.calling.catalog import GENERATOR, RECORD
from cellblock.tools.calling.text import plain

if TYPE_CHECKING:
    from cellblock.tools.calling.content import ToolSpec

OnProgress = Callable[[int, int], object]
"""Is called with how many tools are done, and how many there are."""

_FORMAT = 3  # the version of the generated code; increase it when that changes
_DEEPEST = 250  # deeper parts of a schema are ignored
_LEFT_OVER = 3600.0  # seconds after which an unfinished build counts as abandoned
_BEGINNING = re.compile(rf'\s{{0,9}}\{{\s{{0,9}}"generator"\s{{0,9}}:\s{{0,9}}"{GENERATOR}"'.encode())
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RENAME_EXCHANGE = 2
_MOST_ENTRIES = 100_000

_LOG = logging.getLogger("cellblock.tools")


def tools_hash(tools: Sequence[ToolSpec]) -> str:
    """Return a digest of a server's tool descriptions, in the order in which the server lists them."""
    listed = [[getattr(tool, field.name) for field in fields(tool)] for tool in tools]
    try:
        said = json.dumps([_FORMAT, listed], sort_keys=True)
    except RecursionError:
        said = json.dumps([_FORMAT, cut(listed, _DEEPEST)], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def write_package(
    root_dir: str | os.PathLike[str],
    server_name: str,
    tools: Sequence[ToolSpec],
    on_progress: OnProgress | None = None,
    instructions: str = "",
) -> list[str]:
    """Write the package of a server's tools, unless an identical one exists.

    Args:
        root_dir: The directory of packages, created if missing. It must not be a link.
        server_name: The name of the server and the package.
        tools: The tools.
        on_progress: Called with the number of finished tools.
        instructions: What the server says about its use.

    Returns:
        The names of the modules, in the order of the tools.

    Raises:
        InvalidInputError: The name is invalid for a package, or a directory that was not generated is in its place.
        OSError: The directory cannot be written.
    """
    check_server_name(server_name)
    digest = tools_hash(tools)
    with _opened(Path(root_dir)) as root:
        _check_replaceable(root, server_name, Path(root_dir))
        modules = list(_rendered(tools, on_progress))
        files = _files(server_name, modules, digest, instructions)
        files |= {f"{module}.py": source.encode() for module, source in render_ambiguous(tools).items()}
        if not _is_written(root, server_name, files):
            _remove_left_overs(root, server_name)
            _build(root, server_name, files)
    return [module.name for module in modules]


def _rendered(tools: Sequence[ToolSpec], on_progress: OnProgress | None) -> Iterator[Module]:
    total = len({tool.name for tool in tools})
    for done, module in enumerate(render(tools), start=1):
        yield module
        if on_progress:
            on_progress(done, total)


def _files(server_name: str, modules: Sequence[Module], digest: str, instructions: str) -> dict[str, bytes]:
    files = {f"{module.name}.py": module.source.encode() for module in modules}
    files["__init__.py"] = render_package(server_name, modules, instructions).encode()
    record = {
        "generator": GENERATOR,
        "server": server_name,
        "tools_hash": digest,
        "instructions": plain(instructions),
        "tools": [
            {
                "module": one.name,
                "name": one.tool,
                **{key: getattr(one, key) for key in ("signature", "description", "arguments")},
            }
            for one in modules
        ],
    }
    files[RECORD] = json.dumps(record, indent=1).encode()
    return files


@contextlib.contextmanager
def _opened(root_dir: Path) -> Iterator[int]:
    """Open the directory of packages. All other operations are relative to it, so that it cannot be replaced."""
    root_dir.mkdir(parents=True, exist_ok=True)
    try:
        root = os.open(root_dir, _DIRECTORY)
    except OSError as error:
        raise InvalidInputError(
            f"root_dir must be a directory and not a link; {root_dir} is not ({error.strerror})"
        ) from error
    try:
        yield root
    finally:
        os.close(root)


def _check_replaceable(root: int, name: str, root_dir: Path) -> None:
    """Refuse a name whose directory was not generated."""
    try:
        mode = os.stat(name, dir_fd=root, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode) and (_is_generated(root, name) or not _listed(root, name)):
        return
    raise InvalidInputError(
        f"{root_dir / name} was not generated by cellblock, and is not replaced: move it away, or choose another server_name"
    )


def _listed(root: int, name: str) -> list[str]:
    directory = os.open(name, _DIRECTORY, dir_fd=root)
    try:
        return os.listdir(directory)
    finally:
        os.close(directory)


def _is_generated(root: int, name: str) -> bool:
    """Return whether a package's record starts as generated. The rest is not parsed, because a session may have written it."""
    try:
        beginning = beneath.read_at(root, f"{name}/{RECORD}", 256)
    except OSError:
        return False
    return _BEGINNING.match(beginning) is not None


def _is_written(root: int, name: str, files: dict[str, bytes]) -> bool:
    """Return whether a package has exactly these files, byte for byte.

    No record in the package can prove that, because code in a session may have written it. Leftover bytecode counts as a
    change: Python would run it in place of the source.
    """
    try:
        return set(_listed(root, name)) == set(files) and all(
            beneath.read_at(root, f"{name}/{file}", len(content) + 1) == content for file, content in files.items()
        )
    except OSError:
        return False


def _build(root: int, name: str, files: dict[str, bytes]) -> None:
    """Write a directory next to the package, then move it into place atomically."""
    building = f".{name}.{secrets.token_hex(8)}.new"
    try:
        beneath.make_folder(root, building, files)
        _swap(root, building, name)
    finally:
        # This is now the older package, part of an unfinished one, or missing.
        _remove(root, building)


def _swap(root: int, building: str, name: str) -> None:
    try:
        os.rename(building, name, src_dir_fd=root, dst_dir_fd=root)  # there is no package yet, or an empty directory
    except OSError:
        if _exchange(root, building, name):
            return
        # Not atomic on this system, but never with half a package in place.
        os.rename(name, f"{building}.old", src_dir_fd=root, dst_dir_fd=root)
        os.rename(building, name, src_dir_fd=root, dst_dir_fd=root)
        _remove(root, f"{building}.old")


def _exchange(root: int, one: str, other: str) -> bool:
    """Exchange two directories (renameat2(2)); return False if the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    return renameat2 is not None and renameat2(root, one.encode(), root, other.encode(), _RENAME_EXCHANGE) == 0


def _remove_left_overs(root: int, name: str) -> None:
    """Remove leftovers of killed generations. A generation in progress is younger."""
    for entry in os.listdir(root):
        if entry.startswith(f".{name}.") and entry.endswith((".new", ".new.old")):
            try:
                age = time.time() - os.stat(entry, dir_fd=root, follow_symlinks=False).st_mtime
            except OSError:
                continue  # already removed
            if age > _LEFT_OVER:
                _remove(root, entry)


def _remove(directory: int, name: str, depth: int = 3) -> None:
    """Remove a package, a few folders deep. Deeper files that a cell added stay in the workspace."""
    try:
        folder = os.open(name, _DIRECTORY, dir_fd=directory)
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, _MOST_ENTRIES):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=folder)
                    elif depth > 1:
                        _remove(folder, entry.name, depth - 1)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        _LOG.debug("%s cannot be removed completely: %s", name, error)
