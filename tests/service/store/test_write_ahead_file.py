"""Changes in a file before they are in the database: what is read again after any end of the process, or of the machine."""

from __future__ import annotations

import marshal
import random
import struct
import zlib
from pathlib import Path

import pytest

from cellblock.service.store.write_ahead_file import Change, WriteAheadFile
from full_disk import file_size_limit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ahead"


def change(number: int) -> Change:
    return ("INSERT INTO t VALUES (?, ?, ?, ?, ?)", (number, "ü" * number, b"\x00\xff" * number, None, 0.5))


def test_the_next_process_reads_what_was_added_for_its_transaction(path: Path) -> None:
    ahead = WriteAheadFile(path)
    ahead.add(7, [change(1), change(2)])
    ahead.add(7, [change(3)])
    assert path.stat().st_mode & 0o777 == 0o600
    ahead.close()
    again = WriteAheadFile(path)
    assert again.read(7) == [change(1), change(2), change(3)]
    assert again.read(8) == again.read(6) == []
    again.clear()
    again.add(8, [change(4)])
    assert (again.read(7), again.read(8)) == ([], [change(4)])
    again.close()


def test_of_a_file_that_is_cut_or_damaged_anywhere_a_prefix_is_read(path: Path) -> None:
    ahead = WriteAheadFile(path)
    for number in range(20):
        ahead.add(1, [change(number)])
    ahead.close()
    whole, chance = path.read_bytes(), random.Random(1)
    counts = set()
    for _ in range(100):
        data = bytearray(whole[: chance.randrange(len(whole) + 1)])
        if data and chance.random() < 0.5:
            data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        path.write_bytes(data)
        opened = WriteAheadFile(path)
        found = [n for _, (n, *_) in opened.read(1)]
        opened.close()
        assert found == list(range(len(found)))
        counts.add(len(found))
    assert {0, 19} <= counts


@pytest.mark.parametrize("room", [0, 1, 30])
def test_what_does_not_fit_on_the_disk_is_not_there_at_all(path: Path, room: int) -> None:
    ahead = WriteAheadFile(path)
    ahead.add(1, [change(1)])
    size = path.stat().st_size
    with file_size_limit(size + room), pytest.raises(OSError, match=r"space|large"):
        ahead.add(1, [change(2)])
    assert path.stat().st_size == size
    ahead.add(1, [change(3)])
    assert ahead.read(1) == [change(1), change(3)]
    ahead.close()


@pytest.mark.parametrize(
    "record",
    [b"", b"not marshal", marshal.dumps(7), marshal.dumps((1, 7)), marshal.dumps((1, [7])), marshal.dumps((1, [(7, ())]))],
)
def test_a_record_that_was_not_written_by_us_ends_what_is_read_although_its_checksum_fits(path: Path, record: bytes) -> None:
    ahead = WriteAheadFile(path)
    ahead.add(1, [change(1)])
    with path.open("ab") as file:
        file.write(struct.pack("<II", len(record), zlib.crc32(record)) + record)
    ahead.close()
    again = WriteAheadFile(path)
    assert again.read(1) == [change(1)]
    again.close()
