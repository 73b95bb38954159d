"""Pickles a session's functions and classes by value, to be bound to its variables again.

cloudpickle does most of this. Alone, it would give each loaded function its own globals.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import CellType, FunctionType, ModuleType
from typing import Any

from IPython.core.getipython import get_ipython

_STATE = ("__defaults__", "__kwdefaults__", "__doc__", "__module__", "__qualname__", "__annotations__", "__type_params__")


def provide_cloudpickle() -> None:
    """Make cloudpickle importable: the interpreter's own, or else the host's, whose source is the next line from the host."""
    try:
        importlib.import_module("cloudpickle")
    except ImportError:
        shell: Any = get_ipython()
        _make_cloudpickle(shell.line())


def _make_cloudpickle(source: str) -> None:
    package, module = ModuleType("cloudpickle"), ModuleType("cloudpickle.cloudpickle")
    package.__path__ = []
    sys.modules.update({"cloudpickle": package, "cloudpickle.cloudpickle": module})
    try:
        exec(compile(source, "<cloudpickle>", "exec"), module.__dict__)  # noqa: S102  # the host's own module
    except BaseException:  # of any kind: a half-loaded module must not be imported later
        del sys.modules["cloudpickle"], sys.modules["cloudpickle.cloudpickle"]
        raise
    package.__dict__.update({name: item for name, item in vars(module).items() if not name.startswith("__")})
    package.cloudpickle = module  # type: ignore[attr-defined]


def pickler(file: Any) -> Any:
    """Return a pickler that writes to a file. Its attribute ``code`` tells whether it has written functions or classes."""
    return _pickler()(file, 5)


@functools.cache
def _pickler() -> Any:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        code = False

        def reducer_override(self, value: Any) -> Any:
            if type(value) is FunctionType and value.__globals__ is _namespace():
                self.code = True
                return make_function, *_function(value)
            if type(value) is CellType:
                return make_cell, (), _content(value), None, None, fill_cell
            reduced = super().reducer_override(value)
            self.code |= reduced is not NotImplemented and isinstance(value, (type, FunctionType))
            return reduced

    return Pickler


def _function(function: FunctionType) -> tuple[Any, ...]:
    """Return the reduce tuple of a function. A function may refer to itself."""
    state = {name: getattr(function, name) for name in _STATE if hasattr(function, name)}
    made_of = (function.__code__, function.__name__, function.__closure__)
    return made_of, (function.__dict__, state), None, None, fill_function


def _content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _namespace() -> dict[str, Any]:
    shell: Any = get_ipython()
    namespace: dict[str, Any] = shell.user_ns
    return namespace


# Pickles refer to these by name. They are part of the format: other versions load them, too.


def make_function(code: Any, name: str, closure: Any) -> FunctionType:
    """Return a function whose globals are the session's variables."""
    return FunctionType(code, _namespace(), name, None, closure)


def fill_function(function: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Set the attributes of a function."""
    function.__dict__.update(state[0])
    for name, value in state[1].items():
        setattr(function, name, value)


def make_cell() -> CellType:
    return CellType()


def fill_cell(cell: CellType, content: tuple[Any, ...]) -> None:
    """Set the content of a closure cell, if it has one."""
    for value in content:
        cell.cell_contents = value
