"""Pickles functions and classes of cells for processes that `multiprocessing` does not fork.

Such a process ("spawn", "forkserver") starts with an empty ``__main__``, where pickle would not find them. A script is
imported there again; cells cannot be. So cloudpickle pickles them by value, and they are added to the ``__main__`` of the
process:

- All functions share these variables as their globals there, as in a script: an initializer sets what others read.
- A class in the process's results is looked up here by name, so that it is the session's own class.

A forked process already has everything, without copies of large variables, and pickle refers to names as usual.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pickle
import sys
from importlib.machinery import PathFinder
from types import FunctionType
from typing import Any

from IPython.core.getipython import get_ipython

from cellblock.worker.on_import import on_import

_NEEDED = (
    "functions and classes that a cell defines reach a new process of multiprocessing only by cloudpickle, which this Python "
    "does not have: %pip install cloudpickle, define them in a module, or use multiprocessing.get_context('fork')"
)


def install() -> None:
    """Make `multiprocessing` pickle by value."""
    on_import("multiprocessing.reduction", _change)


def _change(module: Any) -> None:
    module.ForkingPickler.reducer_override = _reduce


def _reduce(pickler: Any, value: Any) -> Any:
    """Return how to pickle a value: as usual, unless it was created in a cell, or belongs to such a value."""
    ways = vars(pickler)
    if "by_value" not in ways:
        ways["by_value"] = None if _is_needed() else NotImplemented
    by_value = ways["by_value"]
    kind = type(value)
    if by_value is NotImplemented or kind in pickler.dispatch_table:
        return NotImplemented
    if kind is _Main:
        return vars, (_MAIN_MODULE,)
    if by_value is None:
        if not (kind is FunctionType or issubclass(kind, type)) or value.__module__ != "__main__":
            return NotImplemented
        by_value = ways["by_value"] = _cloudpickle().Pickler(io.BytesIO())
    reduced = by_value.reducer_override(value)
    if reduced is NotImplemented:
        reduce = by_value.dispatch_table.get(kind)
        return NotImplemented if reduce is None else reduce(value)
    return reduced if value is _FILL or len(reduced) < 6 else _into_main(reduced, value)


def _is_needed() -> bool:
    """Return whether the current pickle may be for a process that was not forked."""
    context, process = sys.modules["multiprocessing.context"], sys.modules["multiprocessing.process"]
    if vars(sys.modules["__main__"]) is not _namespace():
        return False  # %run of a script, which the process imports again
    if context.get_spawning_popen() is not None:
        return True
    if children := [*process._children]:  # noqa: SLF001  # active_children() waits for them
        return any(getattr(child._popen, "method", "fork") != "fork" for child in children)  # noqa: SLF001
    if process.parent_process() is not None:
        return False  # a forked child has everything of its parent
    multiprocessing = sys.modules["multiprocessing"]
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return bool(method != "fork")  # a queue is filled before there is a process


@functools.cache
def _cloudpickle() -> Any:
    # Not the host's copy that `pickling` may have installed: the new process needs one too.
    if PathFinder.find_spec("cloudpickle") is None:
        raise pickle.PicklingError(_NEEDED)
    return importlib.import_module("cloudpickle")


def _namespace() -> dict[str, Any]:
    shell: Any = get_ipython()
    namespace: dict[str, Any] = shell.user_ns
    return namespace


def _into_main(reduced: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Return cloudpickle's reduce tuple, changed so that a function or class becomes part of the process's ``__main__``."""
    make, arguments, state, _, _, set_state = reduced
    namespace, used = _namespace(), dict[str, Any]()
    if type(value) is FunctionType and value.__globals__ is namespace:
        code, _, *rest = arguments
        arguments = (code, _Main(), *rest)
        used = {name: (id(item), item) for name, item in state[1]["__globals__"].items()}
        state = (state[0], {**state[1], "__globals__": {}})
    name = value.__qualname__
    if namespace.get(name) is not value:
        name = None
    return make, arguments, (set_state, state, used, name, os.getpid()), None, None, _FILL


class _Main:
    """A pickled reference to the variables of the process's ``__main__``."""


class _MainModule:
    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, ("__main__",)


_MAIN_MODULE = _MainModule()


def _fill(made: Any, told: tuple[Any, ...]) -> None:
    """Fill in a function or class in the process, and add its variables to ``__main__``.

    An existing variable stays, unless the session has changed its value since, so that the process keeps what its own
    functions have set. This function is pickled by value too, as cellblock is not available there: it imports what it needs.
    """
    import os
    import sys

    set_state, state, used, name, sender = told
    main = vars(sys.modules["__main__"])
    if sender == os.getpid():  # the session reads its own data: its own classes are used
        if name is None or main.get(name) is not made:
            set_state(made, state)
        return
    sent = main.setdefault("__cellblock_sent__", {})
    if name is None or sent.get((name,)) is not made:  # otherwise a class sent before, which may have changed here
        sent[name,] = made
        set_state(made, state)
    for variable, (number, value) in used.items():
        if variable not in main or sent.get(variable, number) != number:
            main[variable] = value
        sent[variable] = number
    if name is not None:
        main[name] = made


_FILL = FunctionType(_fill.__code__, {"__name__": "__main__"}, "fill")
