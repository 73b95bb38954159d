"""Large events are written in a thread: a disk that stalls holds nobody up, and nothing is left of what became no event."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cellblock.model.sessions import ExecutionEvent, ExecutionRecord
from cellblock.service.named.ended_executions import EndedExecution
from cellblock.service.named.event_log import EventLog
from cellblock.service.store.event_files import MAX_AT_ONCE, EventFiles
from cellblock.service.store.journal import new_id
from cellblock.service.store.named import NamedStore
from cellblock.wire.packed import pack
from processes import eventually

LARGE = b"x" * (MAX_AT_ONCE + 1)


async def test_a_disk_that_stalls_holds_up_nothing_but_the_event_that_is_written(tmp_path: Path) -> None:
    store = NamedStore(tmp_path)
    execution = ExecutionRecord(new_id(), "s", "running", 1.0, 1.0)
    store.journal.add(execution, b"", "x")
    log = EventLog(store.journal, execution.id)
    stalled = tmp_path / "named" / "ahead" / "0"
    os.mkfifo(stalled)  # whoever writes to it waits until somebody reads
    data = {"text": LARGE.decode()}

    async def add_large() -> None:
        prepared = await log.prepare(data)
        log.given = 1
        log.add("display", data, prepared)

    adding = asyncio.create_task(add_large())
    await asyncio.sleep(0)
    log.add("decided", {"id": "1"})
    store.writer.flush()
    assert not adding.done()
    assert store.journal.progress(execution.id) == (1, 0)
    assert len(await asyncio.to_thread(stalled.read_bytes)) > MAX_AT_ONCE
    await adding
    assert store.journal.progress(execution.id) == (2, 1)
    store.close()


async def test_an_event_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    beside = EventFiles(tmp_path)
    stalled = tmp_path / "ahead" / "0"
    os.mkfifo(stalled)
    writing = asyncio.create_task(beside.write_ahead(LARGE))
    await asyncio.sleep(0)
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    with ExitStack() as opened:
        with suppress(FileNotFoundError):  # it was given up before the thread had begun
            reader = os.open(stalled, os.O_RDONLY | os.O_NONBLOCK)
            opened.callback(os.close, reader)

        def is_gone() -> bool:
            with suppress(BlockingIOError):
                os.read(reader, 2**20)
            return not stalled.exists()

        await eventually(is_gone if stalled.exists() else lambda: True)
    beside.close()


async def test_what_a_killed_process_has_not_finished_is_removed_and_events_stay(tmp_path: Path) -> None:
    killed = EventFiles(tmp_path)
    first, second = [await killed.write_ahead(LARGE) for _ in range(2)]
    assert first is not None
    assert second is not None
    assert killed.put(1, 1, LARGE, first)
    assert killed.put(1, 2, pack("x"), None)
    later = EventFiles(tmp_path)
    assert not second.exists()
    assert (tmp_path / "1-1").read_bytes() == LARGE
    assert await later.read(1, 2) == "x"
    later.remove([(1, 1), (1, 2)])
    later.close()
    killed.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["ahead"]


@pytest.mark.parametrize("size", [MAX_AT_ONCE, MAX_AT_ONCE + 1])
async def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, size: int) -> None:
    beside = EventFiles(tmp_path / "it")
    for path in (tmp_path / "it" / "ahead" / "0", tmp_path / "it" / "1-1"):
        path.mkdir()
    assert await beside.write_ahead(LARGE[:size]) is None
    assert not beside.put(1, 1, LARGE[:size], None)
    beside.close()


async def test_reading_a_large_event_holds_up_nobody(tmp_path: Path) -> None:
    store = NamedStore(tmp_path)
    execution = ExecutionRecord(new_id(), "s", "done", 1.0, 1.0, 2.0)
    store.journal.add(execution, b"", "x")
    packed = pack({"error": "NotRunError", "message": LARGE.decode(), "ran": "no"})
    store.journal.event(execution.id, 1, "failed", packed)
    (file,) = (tmp_path / "named").glob("*-1")
    file.unlink()
    os.mkfifo(file)  # whoever reads it waits until somebody writes
    past = EndedExecution(execution, store.journal)
    first: asyncio.Task[object] = asyncio.ensure_future(anext(past.follow()))
    last = asyncio.ensure_future(store.journal.last_event(execution.id))
    for _ in range(20):
        await asyncio.sleep(0)  # with the old code, the loop stood still here
    assert not first.done()
    for task in (first, last):
        await asyncio.to_thread(file.write_bytes, packed)
        await task
    assert last.result() == first.result()
    assert last.result() == ExecutionEvent(1, "failed", {"error": "NotRunError", "message": LARGE.decode(), "ran": "no"})
    store.close()
