"""The kernel's side of `Session.load`: the host calls `load` in a silent cell."""

from __future__ import annotations

import base64
import importlib
import json
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from cellblock.model.saving import LeftOut
from cellblock.wire.messages import VALUE_MIME
from cellblock.wire.saved import Group, Loaded, State, read, write
from cellblock.worker.values.saved_values import fitting, reason


def load(batches: int) -> None:
    """Load the state of another session.

    Args:
        batches: Number of lines with the code of its cells, after the line with the state. The pickles come last.
    """
    shell: Any = get_ipython()
    state = read(State, shell.line().encode())
    for _ in range(batches):
        _remember(shell, json.loads(shell.line()))
    left_out: list[LeftOut] = []
    _move(shell, state, left_out)
    loaded = _import(shell.user_ns, state, left_out)
    source = _Source(shell.line)
    for group in state.groups:
        loaded += _take(shell.user_ns, group, source, state, left_out)
    shell.execution_count = state.count + 1
    shell.display_pub.publish({VALUE_MIME: write(Loaded(tuple(loaded), fitting(left_out)))})


def _remember(shell: Any, cells: list[tuple[int | None, str]]) -> None:
    """Add cells to the data of ``In`` and ``%history``."""
    history = shell.history_manager
    for number, code in cells:
        if number is None:
            continue
        for kept in (history.input_hist_parsed, history.input_hist_raw):
            kept += [""] * (number + 1 - len(kept))
            kept[number] = code
        with suppress(Exception):  # tracebacks show its source, and `inspect.getsource` finds it
            shell.compile.cache(shell.transform_cell(code), number, raw_code=code)


def _move(shell: Any, state: State, left_out: list[LeftOut]) -> None:
    for name, value in state.environment.items():
        try:
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        except (ValueError, OSError) as error:
            left_out.append(LeftOut(f"the environment variable {name[:100]!a}", reason(error)))
    if state.directory:
        try:
            os.chdir(state.directory)
            shell.note_directory(Path(state.directory))
        except (ValueError, OSError) as error:
            left_out.append(LeftOut("the working directory", reason(error)))


def _import(namespace: dict[str, Any], state: State, left_out: list[LeftOut]) -> list[str]:
    loaded = []
    for name, module in state.imports.items():
        try:
            namespace[name] = importlib.import_module(module)
            loaded.append(name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # from the module, which may raise anything
            left_out.append(LeftOut(name, reason(error)))
    for module in state.modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            left_out.append(LeftOut(f"the module {module[:100]!a}", reason(error)))
    return loaded


class _Source:
    """The pickles, as sent by the host.

    Attributes:
        left: Number of remaining bytes of the current pickle.
    """

    def __init__(self, line: Callable[[], str]) -> None:
        self.left = 0
        self._line = line
        self._held = memoryview(b"")

    def _more(self, most: int) -> memoryview:
        if not self._held:
            self._held = memoryview(base64.b64decode(self._line()))
        count = min(most, self.left, len(self._held))
        data, self._held = self._held[:count], self._held[count:]
        self.left -= count
        return data

    def read(self, count: int) -> bytes:
        """Return `count` bytes, or all that remain of the pickle."""
        pieces = []
        while count and self.left:
            pieces.append(self._more(count))
            count -= len(pieces[-1])
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer. Return the number of bytes."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and self.left:
            data = self._more(len(view) - done)
            view[done : done + len(data)] = data
            done += len(data)
        return done

    def readline(self) -> bytes:
        """Return bytes up to a newline. Pickles of this protocol have no lines."""
        line = b""
        while self.left and not line.endswith(b"\n"):
            line += self._more(1)
        return line

    def skip(self) -> None:
        """Skip the rest of the pickle."""
        while self.left:
            self._more(self.left)


def _take(namespace: dict[str, Any], group: Group, source: _Source, state: State, left_out: list[LeftOut]) -> tuple[str, ...]:
    source.left = group.size
    try:
        _check_python(group, state)
        values = pickle.Unpickler(source).load() if group.names else {}  # noqa: S301  # in the session's own sandbox
        namespace.update({name: values[name] for name in group.names})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # from anything that the pickle calls
        why = reason(error) + _versions(state.libraries)
        left_out += [LeftOut(name, why + _others(name, group.names)) for name in group.names]
        return ()
    finally:
        source.skip()
    return group.names


def _check_python(group: Group, state: State) -> None:
    here = "{}.{}".format(*sys.version_info)
    if group.code and state.python != here:  # its bytecode could crash this interpreter
        raise ImportError(f"functions and classes of Python {state.python[:20]} cannot be loaded by Python {here}")


def _versions(libraries: Any) -> str:
    """Describe libraries whose versions differ from the saved session's."""
    others = []
    for name, version in libraries.items():
        here = getattr(sys.modules.get(name), "__version__", version)
        if here != version:
            others.append(f"{name[:50]} {version[:50]} is {here!s:.50} here")
    return f" ({', '.join(others[:5])})" if others else ""


def _others(name: str, names: tuple[str, ...]) -> str:
    others = [other for other in names[:4] if other != name][:3]
    more = " and others" if len(names) > len(others) + 1 else ""
    return f"; it shares objects with {', '.join(others)}{more}" if others else ""
