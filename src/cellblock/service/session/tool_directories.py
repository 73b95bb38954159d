"""Directories of generated packages outside the workspace that a session may use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cellblock.errors import InvalidInputError

Directories = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class ToolDirectories:
    """The directories that a program names, by ``tools=`` or by ``PYTHONPATH`` in ``kernel_env``.

    Code in the session cannot add to them: both are read before its kernel starts.

    Attributes:
        callable: Real paths; a server whose package lies in one of them may be called.
        readable: The paths that a sandbox must show so that the packages can be imported.
        environment: Variables of the kernel that make the packages of ``tools=`` importable.
    """

    callable: tuple[str, ...]
    readable: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def read(
        cls, tools: Directories, kernel_env: Mapping[str, str], working_dir: str | os.PathLike[str] | None
    ) -> ToolDirectories:
        """Read a program's directories.

        Args:
            tools: Directories that `generate_mcp_sources` was given as ``root_dir``.
            kernel_env: The variables that the program gives to the kernel.
            working_dir: The kernel's directory, which entries of ``PYTHONPATH`` are relative to; None for the current one.

        Raises:
            InvalidInputError: One of `tools` is not a directory, or has the user's home directory in it.
        """
        named = [_named(path) for path in ([tools] if isinstance(tools, str | os.PathLike) else tools)]
        search = kernel_env.get("PYTHONPATH", "")
        entries = [os.path.join(working_dir or ".", entry) for entry in str(search).split(os.pathsep) if entry]
        on_path = [os.path.abspath(path) for path in entries if os.path.isdir(path)]
        parents = dict.fromkeys(os.path.dirname(path) for path in named)
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, [search, *parents]))} if named else {}
        return cls(
            callable=tuple(dict.fromkeys(os.path.realpath(path) for path in [*named, *on_path])),
            readable=tuple(dict.fromkeys([*named, *(path for path in on_path if not _holds_home(path))])),
            environment=environment,
        )


def _named(path: str | os.PathLike[str]) -> str:
    try:
        directory = os.path.abspath(os.path.expanduser(path))
    except TypeError:
        raise InvalidInputError(f"tools must be directories that packages were generated in, not {path!r}") from None
    if not os.path.isdir(directory):
        raise InvalidInputError(f"tools: {directory} is not a directory; generate an API into it with generate_mcp_sources()")
    if _holds_home(directory):
        raise InvalidInputError(f"tools: {directory} contains your home directory; name the directory of the packages")
    return str(directory)


def _holds_home(path: str) -> bool:
    """Return whether showing a directory would show the user's home directory, which a search path is not meant to do."""
    real = os.path.realpath(path)
    return os.path.commonpath((real, os.path.realpath(Path.home()))) == real
