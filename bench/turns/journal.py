"""The journal of the daemon, when it holds as much as it may."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.turns import begin, end
from cellblock.host import Host
from cellblock.model.sessions import ExecutionRecord
from cellblock.operations.executions import Executions, Follow
from cellblock.operations.sessions import Create, History
from cellblock.service.daemon.async_connection import AsyncConnection
from cellblock.service.daemon.client_connection import Client
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.named.event_log import MAX_EVENTS
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store import journal
from cellblock.service.store.journal import new_id
from cellblock.service.store.named import NamedStore
from cellblock.wire.packed import pack

_CODE = "x" * 2000
_TEXT = pack({"name": "stdout", "text": "x" * 1500})


@contextmanager
def _store() -> Iterator[NamedStore]:
    with tempfile.TemporaryDirectory() as directory:
        store = NamedStore(Path(directory))
        yield store
        store.close()


async def _add(store: NamedStore, session: str, *, events: int) -> ExecutionRecord:
    """Add an execution that has ended, in as many turns as it takes."""
    now = time.time()
    record = ExecutionRecord(new_id(), session, "running", now, now)
    store.journal.add(record, b"", _CODE)
    for seq in range(1, events + 1):
        store.journal.event(record.id, seq, "stream", _TEXT)
        if seq % 20 == 0:
            await store.writer.caught_up()
            await asyncio.sleep(0)
    store.journal.end(replace(record, state="done", ended=now), events * len(_TEXT), "success", 1)
    store.writer.flush()
    await asyncio.sleep(0)
    return record


async def case_trimming() -> None:
    """There are more executions than may be, each with as many events as may be: the oldest go as new ones come."""
    most, journal.MAX_EXECUTIONS = journal.MAX_EXECUTIONS, 3
    try:
        with _store() as store:
            begin()
            for _ in range(8):
                await _add(store, "one", events=MAX_EVENTS)
            assert len(store.journal.last("one", 100)) < 8
            end()
    finally:
        journal.MAX_EXECUTIONS = most


async def case_questions_about_a_session() -> None:
    """A session asks for its history, among 20,000 executions of others, and a reader follows a long execution."""
    with _store() as store:
        async with Host(isolate="none") as host:
            sessions = NamedSessions(host, store)
            server = Server(sessions)
            ours, theirs = socket.socketpair()
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Client(server), theirs)
            connection = await AsyncConnection.open(ours, "1")
            made = await connection.call(Create("one", {"sandbox": False}))
            for _ in range(20_000):
                await _add(store, "other", events=1)
            begin()
            long = await _add(store, made["kernel_id"], events=MAX_EVENTS)
            for _ in range(10):
                assert len(await connection.call(Executions("one"))) == 1
                await connection.call(History("one"))
            events = 0
            async for _ in connection.follow(Follow(long.id)):
                events += 1
            assert events == MAX_EVENTS
            end()
            await connection.close()
            await sessions.close()
