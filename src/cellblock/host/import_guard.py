"""Keeps this process from importing modules that sessions can write.

A program is usually in the directory that its sessions work in, and Python looks for modules there first. Modules that we
and our libraries load late, long after the first cell, could then be ones that a cell has put there, with all of our rights.
What the program itself imports is its own responsibility (``python -P`` keeps the directory out altogether).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType

from cellblock.host import distrusted
from cellblock.sandbox.paths import is_inside
from cellblock.sandbox.probe import own_directories

# Us, and what we use on the trusted side.
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
    """Import nothing of ours from these directories any more, except what no session can write there.

    Args:
        directories: What sessions can write, absolute.
    """
    distrusted.add(directories)
    if not any(isinstance(finder, _Guard) for finder in sys.meta_path):
        # Behind what is built in, ahead of everything that looks for files.
        places = [index for index, finder in enumerate(sys.meta_path) if finder is PathFinder]
        sys.meta_path.insert(places[0] if places else len(sys.meta_path), _Guard())


class _Guard(MetaPathFinder):
    """Finds modules for our own imports, but not in places where a session could have put them."""

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
    """Whether an import was caused by our code: what Python's own modules import counts for the module that imported them."""
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
