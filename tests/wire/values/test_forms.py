"""Values as bytes: what can be carried, what cannot, and hostile bytes."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import pickle
from typing import Any

import numpy as np
import pytest

from cellblock import InvalidInputError
from cellblock.wire.values.forms import decode, encode

LIMIT = 10_000_000


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 1.5, float("inf"), "", "ä\ud800\0", b"", b"json\n\0", [], {}),
        {"a": [1, {"b": None}], "": 10**30},
    ],
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert decode(encode(value, LIMIT), LIMIT) == value


def test_arrays_come_back_as_they_were() -> None:
    cases: list[Any] = [
        np.arange(12).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.ones((2, 3), "float32")),
        np.array(5),
        np.zeros((0, 3)),
        np.array(["a", "bcd"]),
        np.array(["2020-01-01"], "datetime64[s]"),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    ]
    for array in cases:
        back = decode(encode(array, LIMIT), LIMIT)
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert (back == array).all()
        assert back.flags.writeable


def test_numbers_of_numpy_are_numbers() -> None:
    assert decode(encode({"sum": np.int64(3), "mean": np.float32(0.5)}, LIMIT), LIMIT) == {"sum": 3, "mean": 0.5}


def test_what_cannot_be_carried_is_named() -> None:
    cases: list[tuple[Any, str]] = [
        ({1, 2}, "value is of type set"),
        ([{"when": datetime.date(2020, 1, 1)}], r"value\[0\]\['when'\] is of type datetime.date"),
        ({"a": {3: 4}}, r"value\['a'\] has the key 3 of type int"),
        (np.array([object()]), "of objects"),
    ]
    for value, told in cases:
        with pytest.raises(InvalidInputError, match=told):
            encode(value, LIMIT)


def test_what_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidInputError, match="nested more than"):
        encode(value, LIMIT)


def test_a_value_over_the_limit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="over the limit of 100"):
        encode("x" * 101, 100)
    with pytest.raises(InvalidInputError, match="over the limit of 100"):
        decode(b"str\n" + b"x" * 101, 100)


ran: list[int] = []


class Trap:
    def __reduce__(self) -> Any:
        return ran.append, (1,)


def test_a_pickled_value_is_not_read() -> None:
    with pytest.raises(InvalidInputError, match="not supported, 'pickle'"):
        decode(b"pickle\n" + pickle.dumps(Trap()), LIMIT)
    file = io.BytesIO()
    np.save(file, np.array([Trap()]), allow_pickle=True)
    with pytest.raises(InvalidInputError, match="array of objects"):
        decode(b"npy\n" + file.getvalue(), LIMIT)
    assert ran == []


def test_a_value_is_unpickled_on_request() -> None:
    assert decode(encode({1, 2}, LIMIT, pickled=True), LIMIT, unpickle=True) == {1, 2}


def array_of(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"npy\n\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def test_an_array_that_claims_more_than_it_has_is_refused() -> None:
    cases: list[str] = [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (1000000, 1000000)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (0, " + "9" * 30 + ")}",
    ]
    for header in cases:
        with pytest.raises(InvalidInputError):
            decode(array_of(header), LIMIT)


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"\n", b"json", b"json\n", b"json\n{", b"json\n\xff", b"npy\n", b"npy\n\x93NUMPY\x09\x00", b"str\n\xff"),
        b"json\n" + b"[" * 200_000,
        b"json\n" + b"9" * 100_000,
        b"json\n" + b"[" * 400_000,
        array_of("(" * 5000),
        array_of("__import__('os')"),
        b"\xff" * 100,
    ],
)
def test_garbage_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidInputError):
        decode(message, LIMIT)


async def test_a_long_json_lets_the_loop_go_on() -> None:
    message = b"json\n" + json.dumps([{}] * 100_000).encode()
    reading = asyncio.create_task(asyncio.to_thread(decode, message, LIMIT))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await reading) == 100_000
    assert turns > 3
