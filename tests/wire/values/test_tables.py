"""Data frames and tables as bytes, and hostile bytes for them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from cellblock import InvalidInputError
from cellblock.wire.values import tables
from cellblock.wire.values.forms import decode, encode

LIMIT = 10_000_000


def message(table: Any, options: Any = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return b"pandas.DataFrame\n" + bytes(sink.getvalue().to_pybytes())


def test_a_frame_comes_back_as_it_was() -> None:
    frame = pd.DataFrame(
        {
            "number": [1, 2],
            "text": ["x", None],
            "time": pd.to_datetime(["2020-01-01", "2021-01-01"]).tz_localize("Europe/Berlin"),
            "category": pd.Categorical(["q", "r"]),
            "list": [[1], [2, 3]],
        },
        index=pd.Index([3, 9], name="id"),
    )
    back = decode(encode(frame, LIMIT), LIMIT)
    pd.testing.assert_frame_equal(back.drop(columns="list"), frame.drop(columns="list"))
    assert [list(row) for row in back["list"]] == [[1], [2, 3]]


def test_a_series_comes_back_as_it_was() -> None:
    cases: list[str | None] = [None, "prices"]
    for name in cases:
        series = pd.Series([1.5, 2.5], index=["a", "b"], name=name)
        pd.testing.assert_series_equal(decode(encode(series, LIMIT), LIMIT), series)


def test_a_table_comes_back_as_it_was() -> None:
    table = pa.table({"a": [1, None], "b": ["x", "y"]})
    assert decode(encode(table, LIMIT), LIMIT).equals(table)


def test_a_column_that_cannot_be_carried_is_named() -> None:
    with pytest.raises(InvalidInputError, match="mixed"):
        encode(pd.DataFrame({"mixed": [1, "a", object()]}), LIMIT)


def test_a_compressed_table_is_refused() -> None:
    table = pa.table({"zeros": pa.array([0] * 1_000_000, pa.int64())})
    for codec in ("zstd", "lz4"):
        with pytest.raises(InvalidInputError, match="compressed"):
            decode(message(table, pa.ipc.IpcWriteOptions(compression=codec)), LIMIT)
    words = pa.table({"words": pa.array(["a" * 1000, "b" * 1000] * 10).dictionary_encode()})
    with pytest.raises(InvalidInputError, match="compressed"):
        decode(message(words, pa.ipc.IpcWriteOptions(compression="zstd")), LIMIT)


def test_a_table_that_claims_more_than_it_has_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="wrong lengths"):
        decode(message(pa.table({"nothing": pa.nulls(1_000_000)})), LIMIT)


def test_types_that_can_claim_more_than_they_have_are_refused() -> None:
    cases: list[Any] = [
        pa.RunEndEncodedArray.from_arrays(pa.array([2**30], pa.int32()), pa.array([1])),
        pa.array([[1]], pa.list_view(pa.int64())),
        pa.array([[None]], pa.list_(pa.null())),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16))),
    ]
    for column in cases:
        with pytest.raises(InvalidInputError, match="cannot be transferred"):
            decode(message(pa.table({"column": column})), LIMIT)


def test_garbage_is_refused() -> None:
    good = message(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}))
    for place in range(17, len(good), 3):
        bad = good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :]
        try:
            decode(bad, LIMIT)
        except InvalidInputError:
            continue  # or it is another table
    for end in range(17, 200, 7):
        with pytest.raises(InvalidInputError):
            decode(good[:end], LIMIT)


OBJECTS = {
    "lists": pa.array([[]] * 100, pa.list_(pa.int8())),
    "lists in one row": pa.array([[[]] * 100], pa.list_(pa.list_(pa.int8()))),
    "text in one row": pa.array([["x"] * 800], pa.list_(pa.string())),
    "structs": pa.array([{"a": 1}] * 60),
    "dates": pa.array([0] * 100, pa.date32()),
    "decimals": pa.array([1] * 100, pa.decimal128(5)),
    "truth values that are missing": pa.array([None, True] * 400),
    "nothing": pa.nulls(800),
    "categories": pa.DictionaryArray.from_arrays([0], pa.array([[]] * 100, pa.list_(pa.int8()))),
}


@pytest.mark.parametrize("column", OBJECTS.values(), ids=OBJECTS)
def test_a_frame_of_too_many_python_objects_is_refused_before_they_are_made(
    column: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_MAX_OBJECTS", 99)
    padding = pa.array([bytes(300)] * len(column))  # a table may not claim more than it has
    with pytest.raises(InvalidInputError, match=r"column 'a' is of type .*: as a pandas\.DataFrame, the table would have"):
        decode(message(pa.table({"a": column, "padding": padding})), LIMIT)


def test_numbers_and_text_are_no_python_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_MAX_OBJECTS", 99)
    table = pa.table({"number": list(range(1000)), "text": ["x"] * 1000, "time": pa.array([0] * 1000, pa.timestamp("s"))})
    assert len(decode(message(table), LIMIT)) == 1000
