"""Replaces functions of the standard library with functions of the worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


def replace(owner: ModuleType | type, name: str, function: Callable[..., Any]) -> None:
    """Replace an attribute with a function, under the same name, with the same documentation and signature.

    It is pickled by that name, like the original: pools pass functions such as `os.system` to their processes.

    Args:
        owner: A module or a class.
        name: The attribute.
        function: A separate function for each attribute; its names are changed.
    """
    if (original := getattr(owner, name)) is not function:
        functools.update_wrapper(function, original)
    if isinstance(owner, type):
        function.__module__, function.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
    else:
        # `os.system` says that it is of the module posix, which still has the original.
        function.__module__, function.__qualname__ = owner.__name__, name
    setattr(owner, name, function)
