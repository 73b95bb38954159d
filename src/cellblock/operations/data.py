"""Conversions between callers' values and the data of operations, and between answers and `model` objects."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin

from cellblock.errors import InvalidInputError, shown
from cellblock.operations.base import Request

if TYPE_CHECKING:
    from cellblock.model.checkpoints import CheckpointRecord
    from cellblock.model.programs import ProcessInfo
    from cellblock.model.sessions import ExecutionRecord, SessionRecord

_ModelT = TypeVar("_ModelT")
_ModelT_co = TypeVar("_ModelT_co", covariant=True)


class Data(dict[str, Any], Generic[_ModelT_co]):
    """A type-checking marker for the JSON data of a `model` class. At run time, the values are plain dicts."""


def as_data(found: _ModelT) -> Data[_ModelT]:
    """Convert a `model` object to JSON data."""
    from cellblock.model.plain import as_dict

    to_dict: Callable[[], Any] | None = getattr(found, "to_dict", None)
    return as_dict(found) if to_dict is None else to_dict()  # type: ignore[return-value]  # see `Data`


def milliseconds(seconds: float | None, name: str = "timeout", *, may_be_zero: bool = False) -> int:
    """Convert a caller's seconds to milliseconds; -1 for None, and for values too large to matter.

    Raises:
        InvalidInputError: The number is not positive, or 0 where that is allowed.
    """
    if seconds is None:
        return -1
    if may_be_zero and seconds == 0:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        kind = "number of seconds, or 0" if may_be_zero else "number of seconds"
        raise InvalidInputError(f"{name} must be a positive {kind}, not {shown(seconds)}")
    return -1 if seconds > 1e9 else max(round(seconds * 1000), 1)


def session_of(kernel: SessionRecord | str) -> str:
    """Return the name or id of a session from a caller's argument."""
    if isinstance(kernel, str):
        return kernel
    from cellblock.model.sessions import SessionRecord

    if isinstance(kernel, SessionRecord):
        return kernel.kernel_id
    raise InvalidInputError(f"a session is a SessionRecord, a name or an id, not {kernel!r}")


def checkpoint_of(checkpoint: CheckpointRecord | str) -> str:
    """Return the name or id of a checkpoint from a caller's argument."""
    return checkpoint if isinstance(checkpoint, str) else checkpoint.id


def execution_of(execution: ExecutionRecord | str) -> str:
    """Return the id of an execution from a caller's argument."""
    return execution if isinstance(execution, str) else execution.id


def process_of(process: ProcessInfo | str) -> str:
    """Return the id of a program from a caller's argument."""
    return process if isinstance(process, str) else process.id


def answer_type(kind: type[Request[Any]]) -> Any:
    """Return the type of an operation's answer, and load the `model` classes that it names."""
    (answer,) = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]  # each is made from a generic class
    return eval(answer, {}, _Names()) if isinstance(answer, str) else answer  # noqa: S307  # a text of our own


class _Names(dict[str, Any]):
    """The names in the strings of answer types: `Data`, and the modules of `model`."""

    def __missing__(self, name: str) -> Any:
        if name == "Data":
            return Data
        if name in ("list", "dict"):
            raise KeyError(name)
        return importlib.import_module("cellblock.model" if name == "model" else f"cellblock.model.{name}")


def read_answer(kind: type[Request[Any]], answer: Any) -> Any:
    """Convert JSON data to the declared answer type, with `model` objects."""
    if kind not in _readers:
        _readers[kind] = _reader(answer_type(kind))
    read = _readers[kind]
    return answer if read is None else read(answer)


_readers: dict[type[Request[Any]], Callable[[Any], Any] | None] = {}


def _reader(answer: Any) -> Callable[[Any], Any] | None:
    origin, arguments = get_origin(answer), get_args(answer)
    if origin is Data:
        from cellblock.model.plain import reader

        return reader(arguments[0])
    if origin is list and (read := _reader(arguments[0])) is not None:
        return lambda items: [read(item) for item in items]
    return None
