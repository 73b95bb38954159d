"""Changes a module when it is imported, because most sessions never import it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def on_import(name: str, change: Callable[[Any], None]) -> None:
    """Change a module, now or as soon as it is imported.

    Args:
        name: Its full name.
        change: Called with the module.
    """
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder:
    """A finder that waits for the import of the module."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Find only this module, once."""
        if name != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
