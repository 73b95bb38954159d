"""Installs kernelspecs that let a local Jupyter start sandboxed kernels."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellblock.common.extras import require_extra
from cellblock.common.whole_file import WholeFile
from cellblock.errors import InvalidInputError, NotFoundError
from cellblock.model.untrusted import parse_json

NAME = "cellblock"
_MODULE = "cellblock.jupyter"
_MAX_SPEC = 64 * 1024


@dataclass(frozen=True, slots=True)
class Kernelspec:
    """An installed kernelspec of cellblock.

    Attributes:
        name: The name.
        directory: The directory.
        display_name: The name in Jupyter's menus.
        options: The options of its sessions.
    """

    name: str
    directory: Path
    display_name: str
    options: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the kernelspec as plain JSON data."""
        options = dict(self.options)
        return {"name": self.name, "directory": str(self.directory), "display_name": self.display_name, "options": options}


def install(options: Mapping[str, Any], *, name: str = NAME, display_name: str = "", prefix: Path | None = None) -> Kernelspec:
    """Install a kernelspec, or replace one with the same name.

    Args:
        options: The options of its sessions (`named.options`).
        name: The name.
        display_name: The name in Jupyter's menus.
        prefix: The directory above ``share/jupyter``; the user's own data directory by default.

    Raises:
        InvalidInputError: The name is invalid or belongs to another program, or the kernelspec cannot be written.
        UnsupportedError: The extra jupyter is not installed.
    """
    require_extra("jupyter", "kernels for a local Jupyter")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) or name.startswith("."):
        raise InvalidInputError(f"a kernelspec's name has letters, digits and ._- , not {name[:100]!r}")
    directory = (user_directory() if prefix is None else prefix / "share" / "jupyter") / "kernels" / name
    if directory.is_symlink():  # a link would lead to a directory that was not named
        raise InvalidInputError(f"{directory} is a symbolic link: remove it, or choose another --name")
    if directory.exists() and _read(directory) is None:
        raise InvalidInputError(f"{directory} is a kernelspec of another program: choose another --name")
    isolated = options.get("sandbox", True)
    display_name = display_name or ("Python 3 (cellblock)" if isolated else "Python 3 (cellblock, no sandbox)")
    spec = {
        "argv": [sys.executable, "-m", _MODULE, "-f", "{connection_file}", "--options", json.dumps(dict(options))],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"debugger": False, "cellblock": dict(options)},
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with WholeFile(directory / "kernel.json", 0o666) as file:
            file.write(json.dumps(spec, indent=1).encode() + b"\n")
    except OSError as error:
        raise InvalidInputError(f"{directory} cannot be written: {error.strerror}; --prefix names another place") from error
    return Kernelspec(name, directory, display_name, options)


def remove(name: str = NAME) -> Kernelspec:
    """Remove a kernelspec that `install` has installed.

    Raises:
        NotFoundError: The kernelspec does not exist.
        InvalidInputError: It cannot be removed.
    """
    for found in installed():
        if found.name == name:
            try:
                if found.directory.is_symlink():
                    found.directory.unlink()
                else:
                    shutil.rmtree(found.directory)
            except OSError as error:
                raise InvalidInputError(f"{found.directory} cannot be removed: {error.strerror}") from error
            return found
    raise NotFoundError(f"cellblock has installed no kernelspec {name[:100]!r}")


def installed() -> list[Kernelspec]:
    """Return the kernelspecs that `install` has installed."""
    found: list[Kernelspec] = []
    for place in _places():
        with suppress(OSError):  # missing, or this user may not read the directory
            found += [spec for spec in map(_read, sorted(place.iterdir())) if spec is not None]
    return found


def user_directory() -> Path:
    """Return the directory of Jupyter's data of this user."""
    if given := os.environ.get("JUPYTER_DATA_DIR"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Jupyter"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "jupyter"


def _places() -> Iterator[Path]:
    roots = [user_directory(), Path(sys.prefix) / "share" / "jupyter"]
    roots += [Path(path) for path in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if path]
    roots += [Path("/usr/local/share/jupyter"), Path("/usr/share/jupyter")]
    yield from (root / "kernels" for root in dict.fromkeys(roots))


def _read(directory: Path) -> Kernelspec | None:
    """Read a kernelspec of cellblock; return None for other directories."""
    spec = read_spec(directory)
    try:
        if spec is None or _MODULE not in spec["argv"]:
            return None
        return Kernelspec(directory.name, directory, str(spec["display_name"]), dict(spec["metadata"]["cellblock"]))
    except (ValueError, KeyError, TypeError):
        return None


def read_spec(directory: Path) -> dict[str, Any] | None:
    """Read the kernelspec in a directory; return None if it is missing or not readable.

    Other programs may have written anything there: reading does not block, and its size is limited.
    """
    try:
        with open(directory / "kernel.json", "rb", opener=_without_waiting) as file:
            whole = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            spec = parse_json(file.read(_MAX_SPEC)) if whole else None
    except (OSError, ValueError):
        return None
    return spec if isinstance(spec, dict) else None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
