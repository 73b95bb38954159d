"""The packages that an interpreter finds: with an environment's, and perhaps without the interpreter's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_KERNEL_PACKAGES = {
    "IPython",
    "asttokens",
    "cloudpickle",
    "decorator",
    "executing",
    "ipython_pygments_lexers",
    "jedi",
    "matplotlib_inline",
    "parso",
    "pexpect",
    "prompt_toolkit",
    "psutil",
    "ptyprocess",
    "pure_eval",
    "pygments",
    "stack_data",
    "traitlets",
    "typing_extensions",
    "wcwidth",
}
"""IPython, its dependencies, and cloudpickle."""


class _KernelPackages:
    """A finder of the kernel's own packages, for modules that it has not imported yet."""

    def __init__(self, path: list[str]) -> None:
        self._path = path

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module, if it belongs to the kernel."""
        return PathFinder.find_spec(name, self._path, target) if path is None and name in _KERNEL_PACKAGES else None


def hide_packages(environment: str) -> None:
    """Turn this process into one of a virtual environment: without the interpreter's packages, except the kernel's own.

    The operation is idempotent.
    """
    if sys.prefix == environment:
        return
    standard = os.path.dirname(os.__file__)
    own = [entry for entry in sys.path if not entry or entry.endswith(".zip") or _is_standard(entry, standard)]
    finder = _KernelPackages([entry for entry in sys.path if entry not in own])
    sys.path[:] = own
    sys.meta_path[:] = [one for one in sys.meta_path if not getattr(one, "__module__", "").startswith("__editable__")]
    sys.meta_path.append(finder)
    sys.prefix = sys.exec_prefix = environment
    sys.executable = f"{environment}/bin/python"


def is_alone(place: str) -> bool:
    """Return whether an environment is a virtual one, which hides the interpreter's packages."""
    return os.path.isfile(f"{place}/pyvenv.cfg")


@contextmanager
def trusted_packages(environment: str) -> Iterator[None]:
    """Find the packages of a trusted environment in this block, as a process that kernels are forked from.

    Only source files and extension modules are loaded, which the host has compared with their manifest. Bytecode has no
    manifest, and ``.pth`` files run code of packages that nothing imports.

    Args:
        environment: Its directory; empty for none.
    """
    if not environment:
        yield
        return
    if is_alone(environment):
        hide_packages(environment)
    directory = f"{environment}/site-packages"
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.path.insert(1, directory)
    sys.pycache_prefix, sys.dont_write_bytecode = os.devnull, True
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before
        if directory in sys.path:
            sys.path.remove(directory)


def _is_standard(entry: str, standard: str) -> bool:
    inside = entry == standard or entry.startswith(f"{standard}/")
    return inside and os.path.basename(entry) not in ("site-packages", "dist-packages")
