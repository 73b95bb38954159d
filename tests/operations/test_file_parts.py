"""A file that is read part by part, and must stay the same meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.errors import FilesError
from cellblock.operations.file_parts import FileReading

FILE = {"path": "a", "size": 5, "modified": 1.0}


def answer(data: bytes, **changed: Any) -> dict[str, Any]:
    return {"file": {**FILE, **changed}, "data": data}


def test_it_asks_until_all_of_the_file_is_there() -> None:
    reading = FileReading("s", "a")
    offsets = []
    for data in (b"abc", b"de"):
        assert reading.next is not None
        offsets.append(reading.next.offset)
        assert reading.take(answer(data)) == data
    assert (offsets, reading.next, reading.offset, reading.size) == ([0, 3], None, 5, 5)


def test_an_empty_file_takes_one_part() -> None:
    reading = FileReading("s", "a")
    assert reading.take(answer(b"", size=0)) == b""
    assert reading.next is None


def test_a_change_is_told() -> None:
    cases: list[dict[str, Any]] = [answer(b"de", modified=2.0), answer(b"de", size=9), answer(b"")]
    for second in cases:
        reading = FileReading("s", "a")
        reading.take(answer(b"abc"))
        with pytest.raises(FilesError, match="'a' changed while it was read"):
            reading.take(second)
