"""Imports optional libraries: NumPy, pandas, polars, pyarrow."""

from __future__ import annotations

import importlib
from types import ModuleType

from cellblock.errors import InvalidInputError


def module(name: str, what: str) -> ModuleType:
    """Import a library that a form needs.

    Raises:
        InvalidInputError: It is not installed here.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidInputError(
            f"{what} needs {name} in this program and in the session, but one of them lacks it: "
            f"'pip install {name}' here, '%pip install {name}' in a cell"
        ) from error


def type_name(value: object) -> str:
    """Return the usual name of a value's type, such as ``pandas.DataFrame``."""
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
