"""The kernel's side of `Session.save`: the host calls `save` in a silent cell.

Variables whose values share objects are in one pickle, so that they share them again when loaded. Others have a pickle each,
so that a value that cannot be loaded affects no other.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from IPython.core.getipython import get_ipython

from cellblock.model.saving import LeftOut
from cellblock.wire.messages import VALUE_MIME
from cellblock.wire.saved import DATA, END, Group, State, write
from cellblock.worker import pickling
from cellblock.worker.values.variables import names

_REASON = 300
_MAX_NAMES = 256 * 1024
_MAX_LEFT_OUT = 384 * 1024
_MAX_ENVIRONMENT = 64 * 1024
_NAMELESS = (str, bytes, int, tuple, frozenset, type, ModuleType, CodeType, BuiltinFunctionType)
"""Types of objects whose sharing does not matter: they are immutable, or are found by name."""

_IMPORT = re.compile(r"^[ \t]*import[ \t]+([\w., \t]+)", re.MULTILINE)


def save(piece: int) -> None:
    """Send the session's state to the host.

    Args:
        piece: Maximum size of a message in bytes.
    """
    shell: Any = get_ipython()
    out = _Out(shell, piece)
    namespace = shell.user_ns
    kept = names(namespace, shell.user_ns_hidden)
    imports = {name: namespace[name].__name__ for name in kept if _can_be_imported(namespace[name])}
    room = _MAX_NAMES
    left_out: list[LeftOut] = []
    together = _Sharing(namespace.values())
    for name in kept:
        room -= _length(name) + _length(imports.get(name, ""))
        if room < 0:
            imports.pop(name, None)
            left_out.append(LeftOut(name[:100], "there are too many variables, or their names are too long"))
        elif name not in imports:
            try:
                together.look(name, namespace[name])
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # from the value's own methods, which may raise anything
                left_out.append(LeftOut(name, reason(error)))
    groups = [_pickled(out, group, {name: namespace[name] for name in group}, left_out) for group in together.groups()]
    out.flush()
    environment = _changes(shell.environment, left_out)
    out.send(
        END
        + write(
            State(
                groups=tuple(groups),
                imports=imports,
                modules=tuple(sorted({name for name in _imported(namespace.get("In", ())) if name in sys.modules})[:500]),
                environment=environment,
                directory=_directory(left_out),
                count=shell.execution_count - 1,
                python="{}.{}".format(*sys.version_info),
                libraries=_libraries([*imports.values(), *(type(namespace[name]).__module__ for name in together.found)]),
                left_out=fitting(left_out),
            )
        )
    )


def reason(error: BaseException) -> str:
    """Return the reason of a failure."""
    try:
        return f"{type(error).__name__}: {error}"[:_REASON]
    except BaseException:  # the error's own code fails
        return type(error).__name__[:_REASON]


def fitting(left_out: list[LeftOut]) -> tuple[LeftOut, ...]:
    """Return as much of the list as fits into a message, plus the number of the rest."""
    room = _MAX_LEFT_OUT
    for number, one in enumerate(left_out):
        room -= _length(one.name) + _length(one.reason) + 30
        if room < 0:
            return (*left_out[:number], LeftOut("…", f"{len(left_out) - number:,} more"))
    return tuple(left_out)


def _length(text: str) -> int:
    return len(json.dumps(text))


class _Out:
    """Sends bytes to the host in pieces, each of which replaces the previous one in the cell's output."""

    def __init__(self, shell: Any, piece: int) -> None:
        self._publisher = shell.display_pub
        self._piece = piece - len(DATA)
        self._held = bytearray()
        self.written = 0

    def write(self, data: Any) -> None:
        """Add bytes of a pickle."""
        view = memoryview(data).cast("B")
        self.written += len(view)
        while not self._held and len(view) >= self._piece:  # large data is copied only once
            self.send(b"".join((DATA, view[: self._piece])))
            view = view[self._piece :]
        while view:
            room = self._piece - len(self._held)
            self._held += view[:room]
            view = view[room:]
            if len(self._held) >= self._piece:
                self.flush()

    def flush(self) -> None:
        """Send the collected bytes."""
        if self._held:
            self.send(DATA + bytes(self._held))
            self._held.clear()

    def send(self, message: bytes) -> None:
        self._publisher.publish({VALUE_MIME: message})
        self._publisher.clear_output()


class _Sharing:
    """Finds variables whose values share objects.

    Attributes:
        found: The variables that can be pickled.
    """

    def __init__(self, values: Any) -> None:
        self.found: list[str] = []
        self._top = {id(value) for value in values}
        self._met: dict[int, tuple[str, object]] = {}  # with the objects: the id of a freed one may be reused
        self._joined: dict[str, str] = {}
        self._alone = 0
        inner: list[object] = []
        self._alone = max(count for item, count in self._counted([inner]) if item is inner) - 1  # `inner` is one more

    def look(self, name: str, value: object) -> None:
        """Add a variable. Raises any exception of its pickling."""
        shared = [item for item, count in self._counted(value) if count > self._alone and self._matters(item)]
        self.found.append(name)
        for item in shared:
            first, _ = self._met.setdefault(id(item), (name, item))
            self._joined[self._first(name)] = self._first(first)

    def _counted(self, value: object) -> Iterator[tuple[object, int]]:
        """Pickle a value to nowhere. Yield its objects, each with its reference count."""
        pickler = pickling.pickler(_Nowhere())
        pickler.dump(value)
        for _, item in pickler.memo.copy().values():
            yield item, sys.getrefcount(item)

    def _matters(self, item: object) -> bool:
        if isinstance(item, FunctionType):
            return id(item) in self._top
        return not isinstance(item, _NAMELESS) and not type(item).__module__.startswith("numpy.dtypes") and not _has_name(item)

    def _first(self, name: str) -> str:
        while (before := self._joined.get(name, name)) != name:
            name = before
        return name

    def groups(self) -> list[list[str]]:
        """Return the variables in groups that share objects."""
        groups: dict[str, list[str]] = {}
        for name in self.found:
            groups.setdefault(self._first(name), []).append(name)
        return [*groups.values()]


def _has_name(item: object) -> bool:
    """Return whether an object can be found by its name in a library."""
    try:
        module, name = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
        return isinstance(module, str) and isinstance(name, str) and getattr(sys.modules.get(module), name, None) is item
    except Exception:  # from the object's own methods
        return False


class _Nowhere:
    def write(self, data: Any) -> None:
        """Discard bytes."""


def _pickled(out: _Out, group: list[str], values: dict[str, object], left_out: list[LeftOut]) -> Group:
    before = out.written
    pickler = pickling.pickler(out)
    try:
        pickler.dump(values)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as above; unlikely, as it did not fail a moment ago
        left_out += [LeftOut(name, reason(error)) for name in group]
        group = []
    return Group(tuple(group), out.written - before, pickler.code)


def _can_be_imported(value: object) -> bool:
    return type(value) is ModuleType and sys.modules.get(value.__name__) is value and value.__name__ != "__main__"


def _imported(cells: Any) -> Iterator[str]:
    """Yield the submodules that cells have imported: ``import xml.dom`` only creates a variable ``xml``."""
    for code in cells:
        for line in _IMPORT.findall(code) if isinstance(code, str) else ():
            yield from (name for item in line.split(",") if "." in (name := item.split(" as ")[0].strip()))


def _changes(first: dict[str, str], left_out: list[LeftOut]) -> dict[str, str | None]:
    """Return how the environment has changed since the session began."""
    now = dict(os.environ)
    changes: dict[str, str | None] = {name: value for name, value in now.items() if first.get(name) != value}
    changes.update({name: None for name in first if name not in now})
    size = 0
    for name, value in [*changes.items()]:
        size += _length(name) + _length(value or "")
        if size > _MAX_ENVIRONMENT or not _is_text(name + (value or "")):
            del changes[name]
            left_out.append(LeftOut(f"the environment variable {name[:100]!a}", "it is too large, or is not text"))
    return changes


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _directory(left_out: list[LeftOut]) -> str:
    try:
        if _is_text(path := os.getcwd()):
            return path
        why = "its path is not text"
    except OSError as error:
        why = str(error)
    left_out.append(LeftOut("the working directory", why))
    return ""


def _libraries(modules: list[str]) -> dict[str, str]:
    """Return the versions of the libraries that contain some modules."""
    versions = {}
    for root in {name.partition(".")[0] for name in modules if isinstance(name, str)}:
        version = getattr(sys.modules.get(root), "__version__", None)
        if type(version) is str and len(version) < 100:
            versions[root] = version
    return versions
