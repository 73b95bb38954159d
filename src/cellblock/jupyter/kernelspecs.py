"""Kernelspecs that have a plain local Jupyter start sandboxed kernels."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cellblock.errors import InvalidInputError, NotFoundError, UnsupportedError

NAME = "cellblock"
_MODULE = "cellblock.jupyter"


@dataclass(frozen=True, slots=True)
class Kernelspec:
    """A kernelspec of cellblock that is installed.

    Attributes:
        name: Its name.
        directory: Where it is.
        display_name: What Jupyter calls it.
        options: The options of the sessions that it starts.
    """

    name: str
    directory: Path
    display_name: str
    options: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        options = dict(self.options)
        return {"name": self.name, "directory": str(self.directory), "display_name": self.display_name, "options": options}


def install(options: Mapping[str, Any], *, name: str = NAME, display_name: str = "", prefix: Path | None = None) -> Kernelspec:
    """Install a kernelspec, in place of one of the same name.

    Args:
        options: The options of the sessions that it starts (`named.options`).
        name: Its name.
        display_name: What Jupyter calls it.
        prefix: Where: below ``share/jupyter`` of this directory; in this user's own directory by default.

    Raises:
        InvalidInputError: The name cannot be one, or something else has it.
        UnsupportedError: pyzmq is not installed.
    """
    if find_spec("zmq") is None:
        raise UnsupportedError("kernels for a local Jupyter need pyzmq: pip install pyzmq")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) or name.startswith("."):
        raise InvalidInputError(f"a kernelspec's name has letters, digits and ._- , not {name[:100]!r}")
    directory = (user_directory() if prefix is None else prefix / "share" / "jupyter") / "kernels" / name
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
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    return Kernelspec(name, directory, display_name, options)


def remove(name: str = NAME) -> Kernelspec:
    """Remove a kernelspec that `install` has installed.

    Raises:
        NotFoundError: There is none of that name.
    """
    for found in installed():
        if found.name == name:
            shutil.rmtree(found.directory)
            return found
    raise NotFoundError(f"cellblock has installed no kernelspec {name[:100]!r}")


def installed() -> list[Kernelspec]:
    """Return the kernelspecs that `install` has installed."""
    found: list[Kernelspec] = []
    for place in _places():
        directories = sorted(place.iterdir()) if place.is_dir() else []
        found += [spec for spec in map(_read, directories) if spec is not None]
    return found


def user_directory() -> Path:
    """Return where Jupyter keeps what belongs to this user."""
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
    """Return a kernelspec of cellblock; None if it is another program's, or none."""
    try:
        spec = json.loads((directory / "kernel.json").read_bytes())
        if _MODULE not in spec["argv"]:
            return None
        return Kernelspec(directory.name, directory, str(spec["display_name"]), dict(spec["metadata"]["cellblock"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
