"""One file, written from an event loop: batches, what cannot be written, what is damaged, and power cuts."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from cellblock.errors import StoreError
from cellblock.service.store.writer import Writer
from full_disk import file_size_limit
from no_threads import no_room
from processes import eventually

SCHEMA = "CREATE TABLE IF NOT EXISTS counts (n INTEGER PRIMARY KEY, text TEXT) STRICT"
INSERT = "INSERT INTO counts VALUES (?, ?)"


def rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM counts").fetchone()[0])
    finally:
        connection.close()


async def test_what_is_written_later_is_there_soon_and_in_order(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "x.db", SCHEMA)
    told: list[int] = []
    for number in range(10):
        writer.later(INSERT, (number, ""))
    writer.when_written(lambda: told.append(rows(tmp_path / "x.db")))
    assert rows(tmp_path / "x.db") == 0
    await eventually(lambda: told)
    assert told == [10]
    writer.later("UPDATE counts SET text = 'a' WHERE n = 1", ())
    assert writer.read("SELECT text FROM counts WHERE n = 1") == [("a",)]
    writer.close()


async def test_a_full_disk_refuses_new_things_and_keeps_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.service.store.writer._RETRY", 0.05)
    writer = Writer(tmp_path, "x.db", SCHEMA)
    writer._connection.execute("PRAGMA max_page_count = 2")
    told: list[str] = []
    for number in range(5):
        writer.later(INSERT, (number, "x" * 3000))
    writer.when_written(lambda: told.append(writer.problem))
    await eventually(lambda: told)
    assert "full" in told[0]
    with pytest.raises(StoreError, match=r"full; nothing was done"):
        writer.write((INSERT, (100, "x" * 3000)))
    writer._connection.execute("PRAGMA max_page_count = 100000")
    await eventually(lambda: rows(tmp_path / "x.db") == 5)
    assert writer.problem == ""
    writer.write((INSERT, (100, "")))
    writer.close()
    assert rows(tmp_path / "x.db") == 6


async def test_a_check_sees_that_a_disk_is_full_and_that_it_is_not_any_more_although_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.service.store.writer._FRESH", 0.0)
    writer = Writer(tmp_path, "x.db", SCHEMA)
    assert writer.check() == ""
    with file_size_limit(1000):
        assert writer.check() == "the disk is full"
        with pytest.raises(StoreError):
            writer.keep(INSERT, (1, "x"))
        assert writer.problem
    assert writer.check() == "" == writer.problem
    writer.close()
    assert rows(tmp_path / "x.db") == 0


async def test_what_has_no_room_in_the_plain_file_is_written_to_the_database(tmp_path: Path) -> None:
    """On a disk that is full, the log of the database has room that it took before, and the plain file has none."""
    writer = Writer(tmp_path, "x.db", SCHEMA)
    assert writer._ahead is not None
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), writer._ahead._file, inheritable=False)
    for number in range(4):
        writer.keep(INSERT, (number, "x"))
        assert rows(tmp_path / "x.db") == number + 1
    writer._ahead.close()
    writer._ahead = None
    writer.close()


async def test_without_room_for_a_thread_everything_is_written_and_the_log_is_moved_later(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "x.db", SCHEMA)
    with no_room():
        for number in range(10):
            writer.keep(INSERT, (number, "x" * 900_000), 900_000)
            writer.flush()
        assert writer.problem == ""
        assert rows(tmp_path / "x.db") == 10
    assert (tmp_path / "x.db").stat().st_size < 1_000_000
    for number in range(10, 16):
        writer.later(INSERT, (number, "x" * 900_000), 900_000)
        writer.flush()
    await eventually(lambda: (tmp_path / "x.db").stat().st_size > 9_000_000)
    writer.close()


def killed(directory: Path, name: str) -> Writer:
    """Return what the next process opens if the one that writes in a directory is killed now."""
    return Writer(Path(shutil.copytree(directory, directory.parent / f"{directory.name}-{name}")), "x.db", SCHEMA)


async def test_what_is_kept_survives_the_death_of_the_process_although_it_is_not_in_the_database_yet(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a", "x.db", SCHEMA)
    writer.later(INSERT, (0, ""))
    lost = killed(tmp_path / "a", "early")
    writer.keep(INSERT, (1, ""))
    writer.later(INSERT, (2, "not yet"))
    assert rows(tmp_path / "a" / "x.db") == 0
    kept = killed(tmp_path / "a", "kept")
    writer.make_safe()
    safe = killed(tmp_path / "a", "safe")
    told: list[int] = []
    writer.later(INSERT, (3, ""))
    writer.when_safe(lambda: told.append(rows(tmp_path / "a" / "x.db")))
    await eventually(lambda: told)
    assert told == [0]
    told_safe = killed(tmp_path / "a", "told")
    await eventually(lambda: rows(tmp_path / "a" / "x.db") == 4)
    for opened, count in ((lost, 0), (kept, 2), (safe, 3), (told_safe, 4)):
        assert opened.read("SELECT n FROM counts ORDER BY n") == [(n,) for n in range(count)]
        opened.keep(INSERT, (100, ""))  # goes on
        opened.close()
    writer.close()
    assert (tmp_path / "a" / "x.db-ahead").stat().st_size == 0


async def test_no_change_is_made_twice_if_the_process_dies_after_its_transaction(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a", "x.db", SCHEMA)
    writer.keep(INSERT, (1, "a"))
    writer.flush()
    writer.keep("UPDATE counts SET text = text || 'b'", ())
    ahead = (tmp_path / "a" / "x.db-ahead").read_bytes()
    writer.flush()
    (tmp_path / "a" / "x.db-ahead").write_bytes(ahead)
    again = killed(tmp_path / "a", "again")
    assert again.read("SELECT text FROM counts") == [("ab",)]
    for opened in (again, writer):
        opened.close()


async def test_if_what_was_left_fits_no_table_the_rest_goes_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a", "x.db", SCHEMA)
    writer.keep("INSERT INTO another VALUES (?)", (1,))
    again = killed(tmp_path / "a", "again")
    again.keep(INSERT, (1, ""))
    again.close()
    assert rows(tmp_path / "a-again" / "x.db") == 1
    writer.close()


@pytest.mark.parametrize("change", [("SELECT 1; SELECT 2", ()), (INSERT, (1, object)), (INSERT, (2**70, "")), (INSERT, ())])
async def test_changes_that_nothing_can_make_do_not_keep_the_file_from_being_opened(
    tmp_path: Path, change: tuple[str, tuple[object, ...]]
) -> None:
    statement, values = change
    writer = Writer(tmp_path / "a", "x.db", SCHEMA)
    assert writer._ahead is not None
    writer._ahead.add(writer._transaction, [(statement, tuple(1 + 2j if value is object else value for value in values))])
    again = killed(tmp_path / "a", "again")
    assert not again.problem
    again.keep(INSERT, (1, ""))
    again.close()
    assert rows(tmp_path / "a-again" / "x.db") == 1
    writer.close()


async def test_what_cannot_be_kept_is_refused_and_what_waits_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, "x.db", SCHEMA)
    writer.later(INSERT, (1, ""))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("cellblock.service.store.write_ahead_file.WriteAheadFile.add", full)
        writer._connection.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match=r"readonly database; nothing was done"):
            writer.keep(INSERT, (2, ""))
        writer._connection.execute("PRAGMA query_only = 0")
    writer.keep(INSERT, (3, ""))
    writer.close()
    assert rows(tmp_path / "x.db") == 2


async def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.service.store.writer.MAX_WAITING", 10_000)
    writer = Writer(tmp_path, "x.db", SCHEMA)
    writer._connection.execute("PRAGMA max_page_count = 2")
    for number in range(20):
        writer.later(INSERT, (number, "x" * 3000), 3000)
        writer.flush()
    assert writer.lost > 10
    writer.close()


@pytest.mark.parametrize("damage", [b"this is not a database, and long enough to be looked at " * 30, b""])
async def test_a_damaged_file_is_moved_aside(tmp_path: Path, damage: bytes) -> None:
    writer = Writer(tmp_path, "x.db", SCHEMA)
    for number in range(500):
        writer.later(INSERT, (number, "x" * 300))
    writer.close()
    data = bytearray((tmp_path / "x.db").read_bytes())
    if damage:
        data[: len(damage)] = damage
    else:
        data[4096:-4096] = b"\xa5" * (len(data) - 8192)
    (tmp_path / "x.db").write_bytes(data)
    again = Writer(tmp_path, "x.db", SCHEMA)
    assert again.moved is not None
    assert again.moved.read_bytes()[:100] == bytes(data[:100])
    again.write((INSERT, (1, "")))
    again.close()


async def test_after_a_power_cut_the_file_opens_with_a_prefix_of_what_was_written(tmp_path: Path) -> None:
    """The log of writes may be cut anywhere, or end in nonsense."""
    writer = Writer(tmp_path, "x.db", SCHEMA)
    for number in range(60):
        writer.write((INSERT, (number, "x" * 500)))
    log = (tmp_path / "x.db-wal").read_bytes()
    assert log
    random.seed(1)
    counts = []
    for cut in [*sorted(random.sample(range(len(log)), 12)), len(log)]:
        copy = tmp_path / f"copy{cut}"
        copy.mkdir()
        shutil.copy(tmp_path / "x.db", copy)
        (copy / "x.db-wal").write_bytes(log[:cut] + (b"\x5a" * 5000 if cut % 2 else b""))
        opened = Writer(copy, "x.db", SCHEMA)
        found = [n for (n,) in opened.read("SELECT n FROM counts ORDER BY n")]
        assert opened.moved is None
        assert found == list(range(len(found)))
        counts.append(len(found))
        opened.close()
    assert counts == sorted(counts)
    assert counts[-1] == 60
    writer.close()


@pytest.mark.slow
async def test_the_loop_never_waits_for_the_disk_however_large_the_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who write much wait for a checkpoint instead, and the log begins again."""
    monkeypatch.setattr("cellblock.service.store.writer.CHECKPOINT_BYTES", 50_000)
    monkeypatch.setattr("cellblock.service.store.writer._LARGE_LOG", 200_000)
    writer = Writer(tmp_path, "x.db", SCHEMA)
    statements: list[str] = []
    writer._connection.set_trace_callback(statements.append)
    largest = 0
    for number in range(500):
        writer.write((INSERT, (number, "x" * 1000)))
        await writer.caught_up()
        largest = max(largest, (tmp_path / "x.db-wal").stat().st_size)
    assert not [statement for statement in statements if "checkpoint" in statement]
    assert largest < 1_500_000
    writer.close()


@pytest.mark.slow
async def test_the_log_begins_again_although_there_is_always_more_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits here for a checkpoint: what is safe in the plain file does."""
    monkeypatch.setattr("cellblock.service.store.writer.CHECKPOINT_BYTES", 50_000)
    monkeypatch.setattr("cellblock.service.store.writer._LARGE_LOG", 200_000)
    monkeypatch.setattr("cellblock.service.store.writer._SOON", 0.0002)
    writer = Writer(tmp_path, "x.db", SCHEMA)
    largest = 0
    for number in range(6000):
        writer.keep(INSERT, (number, "x" * 1000), 1000)
        await asyncio.sleep(0.001 if number % 50 == 0 else 0)  # or on a busy machine all of it would be one transaction
        largest = max(largest, (tmp_path / "x.db-wal").stat().st_size if number > 100 else 0)
    assert largest < 6_000_000  # 8 MB are written in all
    writer.close()
    assert rows(tmp_path / "x.db") == 6000


async def test_without_a_file_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer = Writer(None, "x.db", SCHEMA)
    writer.write((INSERT, (1, "a")))
    writer.keep(INSERT, (2, "b"))
    assert writer.read("SELECT text FROM counts") == [("a",), ("b",)]
    writer.close()
    assert list(tmp_path.iterdir()) == []
