"""The systems that are compared, each behind the same few methods.

Each module here is imported only in a process of its own, in the environment that has the system, and defines ``SYSTEM``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

NAMES = ("cellblock", "ipybox", "kernelbox", "jupyter")
TITLES = {
    "cellblock": "cellblock",
    "ipybox": "ipybox",
    "kernelbox": "KernelBox",
    "jupyter": "jupyter_client",
}


class Kernel(Protocol):
    """One kernel, through the front that its system's users use."""

    async def execute(self, code: str, timeout: float | None = None) -> str:
        """Run a cell; return what it printed, or what there is of that when it was stopped at its deadline."""

    async def stream(self, code: str) -> int:
        """Run a cell and take its output as it comes; return how many characters came."""

    async def close(self) -> None:
        """End it."""


class System:
    """One way to get kernels.

    Attributes:
        blocking: Whether its calls block the thread they are made in.
        cold: A program that imports it, runs one cell and exits.
        module: What such a program imports.
    """

    blocking = True
    cold: str
    module: str

    async def open(self, preload: tuple[str, ...] = ()) -> None:
        """Do what is done once, before the first kernel. Only cellblock knows preloading."""

    async def kernel(self, isolate: str = "none") -> Kernel:
        """Start a kernel. Only cellblock has sandboxes."""
        raise NotImplementedError

    async def generate(self, name: str, params: Mapping[str, Any], root: Path, *, awaited: bool = False) -> None:
        """Write an API for the tools of an MCP server. Only cellblock and ipybox can.

        Args:
            name: The name of the server, and the package.
            params: How to start it.
            root: Where packages are.
            awaited: Whether calls are to be awaited, where that is not the same package.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Undo `open`."""


def load(name: str) -> System:
    """Return a system, in a process whose environment has it."""
    system: System = import_module(f"bench.systems.{name}").SYSTEM
    return system
