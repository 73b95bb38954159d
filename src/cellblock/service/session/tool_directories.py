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
    """The directories given by ``tools=``, or by ``PYTHONPATH`` in ``kernel_env``.

    Code in the session cannot add directories: both are read before its kernel starts.

    Attributes:
        callable: Real paths of directories whose packages' servers may be called.
        readable: The paths that a sandbox must show so that the packages can be imported.
        environment: Kernel variables that make the packages of ``tools=`` importable.
    """

    callable: tuple[str, ...]
    readable: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def read(
        cls, tools: Directories, kernel_env: Mapping[str, str], working_dir: str | os.PathLike[str] | None
    ) -> ToolDirectories:
        """Read the directories from the options.

        Args:
            tools: Directories that were passed to `generate_mcp_sources` as ``root_dir``.
            kernel_env: The environment variables of the kernel.
            working_dir: The kernel's directory, the base of relative entries in ``PYTHONPATH``; None for the current one.

        Raises:
            InvalidInputError: One of `tools` is not a directory, or contains the user's home directory.
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
    """Return whether a directory contains the user's home directory, which a search path must not expose."""
    real = os.path.realpath(path)
    return os.path.commonpath((real, os.path.realpath(Path.home()))) == real
