"""Encodes values as JSON, text, bytes, NumPy's file format or Arrow tables; as pickles only on request.

Both sides use this module. The trusted side reads untrusted bytes: each reader bounds its result by the size of its input, and
runs no code that the bytes name. Readers are slow for large values and belong in a thread; they let other threads run.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Callable
from json.decoder import JSONDecoder
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # not in the stubs
from math import prod
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.wire.values.optional import module, type_name

_MAX_DEPTH = 100
_MAX_QUICK_JSON = 256 * 1024
"""Maximum bytes of JSON for the fast parser, which blocks all other threads."""

_MAX_HEADER = 10_000
_ADVICE = (
    "numbers, text, bytes, lists and dicts of them, NumPy arrays and data frames can be: convert it, or write it to a file"
)


def encode(value: object, limit: int, *, pickled: bool = False) -> bytes:
    """Encode a value: one line with the name of the form, then the value.

    Args:
        value: The value.
        limit: Maximum size in bytes.
        pickled: Whether to pickle values without a safe form.

    Raises:
        InvalidInputError: It has no such form, or is too large.
    """
    try:
        form, data = _encoded(value)
    except InvalidInputError:
        if not pickled:
            raise
        form, data = "pickle", pickle.dumps(value)
    if len(data) > limit:
        raise InvalidInputError(
            f"a value of {len(data):,} bytes ({type_name(value)}) is over the limit of {limit:,}: write it to a file, or "
            "raise Limits(media=…, values=…)"
        )
    return form.encode() + b"\n" + data


def decode(message: bytes, limit: int, *, unpickle: bool = False) -> Any:
    """Decode a received value.

    Args:
        message: The result of `encode`, or any other bytes.
        limit: Maximum size of the value in bytes.
        unpickle: Whether to unpickle a pickle, which runs code of the sender's choice.

    Raises:
        InvalidInputError: It is not a valid value, or it is a pickle and `unpickle` is false.
    """
    form, _, data = message.partition(b"\n")
    if len(data) > limit:
        raise InvalidInputError(f"the value has {len(data):,} bytes, over the limit of {limit:,}")
    name = form[:20].decode("ascii", "replace")
    if (read := _reader(name, unpickle)) is None:
        raise InvalidInputError(f"the session sent a value in a form that is not supported, {name!r}")
    try:
        return read(data)
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(f"the session sent {name} that is not valid: {str(error)[:200]}") from error


def _encoded(value: object) -> tuple[str, bytes]:
    if isinstance(value, str):
        return "str", value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", bytes(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        if type(value) is not numpy.ndarray or value.dtype.hasobject:
            what = "of objects" if value.dtype.hasobject else "that is a subclass"
            raise InvalidInputError(f"a NumPy array {what} ({type_name(value)}) cannot be transferred; {_ADVICE}")
        file = io.BytesIO()
        numpy.lib.format.write_array(file, value, allow_pickle=False)
        return "npy", file.getvalue()
    if type_name(value) in _TABLES:
        from cellblock.wire.values import tables

        return tables.encode(value)
    return "json", json.dumps(_plain(value, "value", 0), separators=(",", ":")).encode()


_TABLES = ("pandas.DataFrame", "pandas.Series", "polars.DataFrame", "pyarrow.Table")


def _plain(value: Any, where: str, depth: int) -> Any:
    """Return a value of JSON's types. Raise with the path of any other value."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth >= _MAX_DEPTH:
        raise InvalidInputError(f"the value is nested more than {_MAX_DEPTH} deep, or contains itself")
    if type(value) in (list, tuple):
        return [_plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise InvalidInputError(f"{where} has the key {key!r:.80} of type {type_name(key)}; keys must be str")
        return {key: _plain(item, f"{where}[{key!r:.80}]", depth + 1) for key, item in value.items()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and type(value.item()) in (bool, int, float, str):
        return value.item()
    raise InvalidInputError(f"{where} is of type {type_name(value)}, which cannot be transferred; {_ADVICE}")


def _reader(form: str, unpickle: bool) -> Callable[[bytes], Any] | None:
    return _readers().get(form) if form != "pickle" or not unpickle else pickle.loads


def _readers() -> dict[str, Callable[[bytes], Any]]:
    from cellblock.wire.values import tables

    return {
        "str": lambda data: data.decode("utf-8", "surrogatepass"),
        "bytes": lambda data: data,
        "json": read_json,
        "npy": _read_array,
        "pandas.DataFrame": tables.read_frame,
        "pandas.Series": tables.read_series,
        "polars.DataFrame": tables.read_polars,
        "pyarrow.Table": tables.read,
    }


def read_json(data: bytes) -> Any:
    """Parse JSON while other threads run."""
    text = data.decode()
    if len(data) <= _MAX_QUICK_JSON:
        return json.loads(text)
    decoder: Any = JSONDecoder()
    decoder.scan_once = py_make_scanner(decoder)  # 20 times slower, but other threads run meanwhile
    return decoder.decode(text)


def _read_array(data: bytes) -> Any:
    numpy = module("numpy", "a NumPy array")
    file = io.BytesIO(data)
    version = numpy.lib.format.read_magic(file)
    read_header = {
        (1, 0): numpy.lib.format.read_array_header_1_0,
        (2, 0): numpy.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise InvalidInputError(f"the session sent an array in an unknown version, {version}")
    shape, fortran, dtype = read_header(file, max_header_size=_MAX_HEADER)
    if dtype.hasobject:
        raise InvalidInputError("the session sent an array of objects, which is not supported")
    count, start = prod(shape), file.tell()
    # The data must have the size that the header claims before an array is created.
    if dtype.itemsize == 0 or any(n < 0 for n in shape) or count * dtype.itemsize != len(data) - start:
        raise InvalidInputError("the session sent an array whose size does not match its shape")
    array = numpy.frombuffer(data, dtype, count, start) if count else numpy.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran else "C").copy(order="K")
