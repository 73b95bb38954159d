"""cellblock: sandboxed, stateful IPython sessions for AI agents.

Names are loaded on first use, so that ``import cellblock`` is cheap. The stub ``__init__.pyi`` lists them with their modules.
"""

from __future__ import annotations

import functools
import re
from importlib import import_module
from typing import Any


@functools.cache
def _modules() -> dict[str, str]:
    """Return the module of each public name, from the list that type checkers read."""
    with open(f"{__file__}i", encoding="utf-8") as stub:
        return {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as", stub.read(), re.MULTILINE)}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        value: Any = sorted(_modules().keys() - {"__version__"})
    elif name in _modules():
        value = getattr(import_module(_modules()[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
