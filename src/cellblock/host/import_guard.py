"""Prevents this process from importing modules that sessions can write.

A program usually runs in its sessions' working directory, where Python looks for modules first. A module that cellblock or its
dependencies load late could then be one that a cell created, with all permissions of this process. The program's own imports
are its own responsibility (``python -P`` excludes the directory altogether).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType

from cellblock.host import distrusted
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.probe import own_directories

# Cellblock, and its dependencies on the trusted side.
_OURS = frozenset(
    [
        "annotated_types",
        "anyio",
        "attr",
        "attrs",
        "cellblock",
        "certifi",
        "h11",
        "httpcore",
        "httpcore2",
        "httptools",
        "httpx",
        "httpx2",
        "httpx_sse",
        "idna",
        "jsonschema",
        "mcp",
        "mcp_types",
        "pydantic",
        "pydantic_core",
        "pydantic_settings",
        "python_multipart",
        "referencing",
        "rpds",
        "sniffio",
        "sse_starlette",
        "starlette",
        "truststore",
        "typing_extensions",
        "typing_inspection",
        "uvicorn",
        "websockets",
    ]
)


def distrust(directories: Iterable[str]) -> None:
    """Exclude directories from our own imports, except subdirectories that no session can write.

    Args:
        directories: Absolute paths that sessions can write.
    """
    distrusted.add(directories)
    if not any(isinstance(finder, _Guard) for finder in sys.meta_path):
        # After built-in modules, before everything that looks for files.
        places = [index for index, finder in enumerate(sys.meta_path) if finder is PathFinder]
        sys.meta_path.insert(places[0] if places else len(sys.meta_path), _Guard())


class _Guard(MetaPathFinder):
    """A finder for our own imports that skips paths that a session could have written."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not _asked_by_us(sys._getframe(1)):  # noqa: SLF001  # nothing else tells who imports
            return None  # a submodule is where its package is
        found = PathFinder.find_spec(fullname, [entry for entry in sys.path if _trusted(entry)])
        if found is None and PathFinder.find_spec(fullname) is not None:
            raise ModuleNotFoundError(f"No module named {fullname!r} where sessions cannot write", name=fullname)
        return found


def _asked_by_us(frame: FrameType | None) -> bool:
    """Return whether our code caused an import.

    An import by Python's own modules counts for the module that imported these.
    """
    while frame is not None:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top not in sys.stdlib_module_names:
            return top in _OURS
        frame = frame.f_back
    return False


def _trusted(entry: str) -> bool:
    place = os.path.realpath(entry or os.curdir)
    if not any(is_inside(place, directory) for directory in distrusted.places):
        return True
    return any(is_inside(place, directory) for directory in own_directories())
