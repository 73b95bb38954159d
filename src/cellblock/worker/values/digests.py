"""Digests of values, to detect whether a variable has changed between two states of one session.

Equal digests mean that pickling the two values gives the same bytes. Buffers, such as the memory of arrays, are read in place,
at about the speed of memory.
"""

from __future__ import annotations

import hashlib
import pickle
import time
import zlib
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_BLOCK = 4 * 1024 * 1024
_LARGE = 64 * 1024
_NOT_CONTENT = {"__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__", "__annotate__"}


class _OutOfTimeError(Exception):
    """The time limit was reached."""


def digest(value: object, until: float) -> str | None:
    """Return the digest of a value, or None if it cannot be pickled, or not in time.

    This calls the pickling methods of the value's types, as saving does.

    Args:
        value: The value.
        until: The deadline (`time.monotonic`).
    """
    # Without a memo, sharing and interning of strings make no difference. Values that contain themselves need one.
    for fast in (True, False):
        sink = _Sink(until)
        try:
            pickler = _Pickler(sink, 5, buffer_callback=sink.take)
            pickler.fast = fast
            pickler.dump(value)
        except ValueError:
            continue
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException:  # from the value's own methods, which may raise anything
            return None
        return sink.hash.hexdigest()
    return None


class _Sink:
    """A sink that hashes the output of a pickler.

    Attributes:
        hash: The digest.
    """

    def __init__(self, until: float) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._until = until

    def write(self, data: Any) -> None:
        """Add a piece of the stream."""
        if len(data) < _LARGE:
            self.hash.update(data)
            self._check()
        else:
            self._add(memoryview(data))

    def take(self, buffer: pickle.PickleBuffer) -> None:
        """Add an out-of-band buffer."""
        self._add(buffer.raw())

    def _add(self, view: memoryview) -> None:
        """Add much data, by checksum: that is four times faster, and only accidental changes need to be detected."""
        check = 0
        for start in range(0, view.nbytes, _BLOCK):
            check = zlib.crc32(view[start : start + _BLOCK], check)
            self._check()
        self.hash.update(b"%d:%d" % (view.nbytes, check))

    def _check(self) -> None:
        if time.monotonic() > self._until:
            raise _OutOfTimeError


class _Pickler(pickle.Pickler):
    """A pickler of functions and classes of the session by content, and all others by name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._met: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (FunctionType, type)) and value.__module__ == "__main__":
            if id(value) in self._met:
                return str, (value.__qualname__,)
            self._met.add(id(value))
            return tuple, ((tuple(_function(value) if isinstance(value, FunctionType) else _class(value)),),)
        if type(value) is ModuleType:
            return str, (value.__name__,)
        if isinstance(value, property):
            return tuple, ((value.fget, value.fset, value.fdel),)
        if isinstance(value, (classmethod, staticmethod)):
            return tuple, ((type(value).__name__, value.__func__),)
        return NotImplemented


def _function(function: FunctionType) -> Iterator[Any]:
    yield from (function.__qualname__, _code(function.__code__), function.__defaults__, function.__kwdefaults__)
    yield from (function.__dict__, function.__doc__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield "an empty cell"


def _code(code: CodeType) -> tuple[Any, ...]:
    """Return the content of code, independent of its location."""
    constants = tuple(_code(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)


def _class(kind: type) -> Iterator[Any]:
    yield kind.__qualname__
    yield [base.__qualname__ for base in kind.__bases__]
    yield {name: item for name, item in vars(kind).items() if name not in _NOT_CONTENT}
