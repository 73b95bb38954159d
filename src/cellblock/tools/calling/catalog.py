"""The catalogue of tools below a directory: generated packages and saved actions.

Standard library only, because it works inside a session and outside. Files are read and never imported. They are untrusted,
because a session may have written them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.tools.calling import beneath
from cellblock.tools.calling.actions import signature_of
from cellblock.tools.calling.text import first_line

GENERATOR = "cellblock"
RECORD = ".cellblock.json"
"""The file in a generated package that says what is in it."""

MOST_INDEX = 8 * 1024 * 1024
_INTERFACE = "api.py"
_MOST_INTERFACE = 64 * 1024
"""Bytes of the interface of a saved action. It is parsed, which can take 7 µs for each byte, and memory for 1,000."""
_MOST_PACKAGES = 500
_LONGEST = 2000
_LONGEST_SAID = 4001


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with a module.

    Attributes:
        server: The name of the server and the package.
        module: The module's name.
        name: The tool's name on the server.
        signature: The signature, on one line.
        description: The server's description.
        arguments: The names and descriptions of its arguments.
    """

    server: str
    module: str
    name: str
    signature: str
    description: str
    arguments: str = ""

    @property
    def summary(self) -> str:
        """The first line of the description."""
        return first_line(self.description)

    @property
    def path(self) -> str:
        """The tool within the catalogue: ``server.module``."""
        return f"{self.server}.{self.module}"


def tools(root_dir: str | os.PathLike[str] = "mcptools") -> list[Tool]:
    """Return all tools of the packages in a directory.

    Args:
        root_dir: The directory passed to `generate_mcp_sources`.

    Returns:
        The tools by server, in each server's order; empty if the directory is missing, or a link.
    """
    try:
        packages = beneath.folders_in(root_dir)
    except OSError:
        return []
    return [tool for package in packages[:_MOST_PACKAGES] for tool in _tools_of(root_dir, package)]


def instructions(server: str, root_dir: str | os.PathLike[str] = "mcptools") -> str:
    """Return what a server says about its use; empty if it says nothing."""
    try:
        record: Any = json.loads(beneath.read(root_dir, server, RECORD, most=MOST_INDEX))
    except (OSError, ValueError, RecursionError):
        return ""
    said = record.get("instructions") if isinstance(record, dict) and record.get("generator") == GENERATOR else ""
    return said[:_LONGEST_SAID] if isinstance(said, str) else ""


def source(path: str, root_dir: str | os.PathLike[str] = "mcptools") -> str:
    """Return the complete source of one tool's module.

    Args:
        path: The tool, as ``server.module``.
        root_dir: The directory passed to `generate_mcp_sources`.

    Returns:
        The module's source.

    Raises:
        InvalidInputError: The tool does not exist.
    """
    server, _, module = path.partition(".")
    if server.isidentifier() and module.isidentifier():
        for place in ((f"{module}.py",), (module, _INTERFACE)):
            try:
                return beneath.read(root_dir, server, *place, most=MOST_INDEX).decode("utf-8", "replace")
            except OSError:
                pass  # reported below
    raise InvalidInputError(f"there is no tool {path[:200]!r} under {os.fspath(root_dir)!r}; name tools as server.module")


def _tools_of(root: str | os.PathLike[str], package: str) -> Iterator[Tool]:
    try:
        record: Any = json.loads(beneath.read(root, package, RECORD, most=MOST_INDEX))
    except FileNotFoundError:
        yield from _actions_of(root, package)
        return
    except (OSError, ValueError, RecursionError):
        return
    listed = record.get("tools") if isinstance(record, dict) and record.get("generator") == GENERATOR else None
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict):
            continue
        texts = [str(entry.get(key, ""))[:_LONGEST] for key in ("module", "name", "signature", "description", "arguments")]
        if texts[0].isidentifier():
            yield Tool(package, *texts)


def _actions_of(root: str | os.PathLike[str], category: str) -> Iterator[Tool]:
    """Yield the code actions of a category (`actions`), which are packages with their own interface."""
    try:
        found = beneath.folders_in(root, category)
    except OSError:
        return
    for name in found[:_MOST_PACKAGES]:
        try:
            source = beneath.read(root, category, name, _INTERFACE, most=_MOST_INTERFACE + 1)
        except OSError:
            continue
        called = signature_of(source.decode("utf-8", "replace")) if len(source) <= _MOST_INTERFACE else None
        if called is not None:
            yield Tool(category, name, name, f"{name}{called[0]}"[:_LONGEST], called[1][:_LONGEST])
