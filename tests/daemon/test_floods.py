"""Many clients that ask for much: the daemon's loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cellblock import Host, __version__, turns
from cellblock.daemon import client as client_module
from cellblock.daemon import server as server_module
from cellblock.daemon.async_connection import AsyncConnection
from cellblock.daemon.client import Client
from cellblock.daemon.messages import Executions, Follow, List
from cellblock.daemon.server import Server
from cellblock.model.sessions import ExecutionRecord, SessionRecord
from cellblock.named.sessions import NamedSessions
from cellblock.store import journal
from cellblock.store.journal import new_id
from cellblock.store.named import NamedStore
from cellblock.wire.packed import pack

COUNT = 300


@pytest.fixture
async def store(tmp_path: Path) -> NamedStore:
    """Many sessions, and many executions of the first, the last of which has many events."""
    store, now = NamedStore(tmp_path), time.time()
    for number in range(COUNT):
        store.sessions.add(SessionRecord(f"{number:032x}", f"session {number}", "2026-01-01", "2026-01-01"), {})
    for _ in range(COUNT):
        last = ExecutionRecord(new_id(), "0" * 32, "done", now, now, now)
        store.journal.add(last, b"", "1")
        store.journal.end(last, 0)
    for seq in range(1, COUNT + 1):
        store.journal.event(last.id, seq, "stream", pack({"name": "stdout", "text": "x"}))
    store.journal.writer.flush()
    return store


@asynccontextmanager
async def connected(store: NamedStore) -> AsyncIterator[AsyncConnection]:
    async with Host(isolate="none") as host:
        sessions = NamedSessions(host, store)
        server = Server(sessions)
        place = tempfile.mkdtemp(prefix="s-", dir="/tmp")  # an address has 107 bytes at most
        path = Path(place) / "socket"
        listening = await asyncio.get_running_loop().create_unix_server(lambda: Client(server), str(path))
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(path))
        connection = await AsyncConnection.open(sock, __version__)
        try:
            yield connection
        finally:
            await connection.close()
            listening.close()
            await sessions.close()
            shutil.rmtree(place)


def counted(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> Counter[int]:
    """Return how often a function was called by a module, in each turn of the loop."""
    calls, loop, turn = Counter[int](), asyncio.get_running_loop(), 0
    function: Callable[..., Any] = getattr(module, name)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    def count(*arguments: Any, **more: Any) -> Any:
        calls[turn] += 1
        return function(*arguments, **more)

    next_turn()
    monkeypatch.setattr(module, name, count)
    monkeypatch.setattr(turns, "_SLICE", 0.0)
    return calls


async def test_a_list_of_many_sessions_is_made_in_turns(
    store: NamedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(store) as connection:
        calls = counted(monkeypatch, server_module, "encode_item")
        for refresh in (False, True):
            found = await connection.call(List(refresh))
            assert [record["name"] for record in found] == [f"session {number}" for number in range(COUNT)]
        assert max(calls.values()) <= 2


async def test_those_who_follow_a_flood_of_events_take_turns(
    store: NamedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(store) as connection:
        calls = counted(monkeypatch, client_module, "encode_reply")
        last = (await connection.call(Executions("0" * 32)))[0]["id"]

        async def follow() -> int:
            return len([event async for event in connection.follow(Follow(last))])

        assert await asyncio.gather(*(follow() for _ in range(5))) == [COUNT] * 5
        assert max(calls.values()) <= 5 + 2


async def test_a_list_of_executions_has_an_end(store: NamedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_LISTED", 100)
    async with connected(store) as connection:
        assert len(await connection.call(Executions("0" * 32, 1_000_000))) == 100
