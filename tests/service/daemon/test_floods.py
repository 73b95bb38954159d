"""Many clients that ask for much: the daemon's loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cellblock import Host, __version__
from cellblock.common import turns
from cellblock.model.sessions import ExecutionRecord, SessionRecord
from cellblock.operations.base import PROTOCOL
from cellblock.operations.executions import Executions, Follow, Submit
from cellblock.operations.sessions import List
from cellblock.service.daemon import client_connection as client_module
from cellblock.service.daemon import session_handlers as sessions_module
from cellblock.service.daemon.answering import answer
from cellblock.service.daemon.async_connection import AsyncConnection
from cellblock.service.daemon.client_connection import Client
from cellblock.service.daemon.codec import MAX_REPLY
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.in_process import connect
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store import journal
from cellblock.service.store.journal import new_id
from cellblock.service.store.named import NamedStore
from cellblock.wire.frames import FrameParser, encode_frame
from cellblock.wire.packed import pack
from processes import eventually

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
async def connected(store: NamedStore, host: Host) -> AsyncIterator[AsyncConnection]:
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
    """Return how often a function was called by a module, in each turn of the loop until the test ends."""
    calls, loop, turn = Counter[int](), asyncio.get_running_loop(), 0
    function: Callable[..., Any] = getattr(module, name)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if getattr(module, name) is count:
            loop.call_soon(next_turn)

    def count(*arguments: Any, **more: Any) -> Any:
        calls[turn] += 1
        return function(*arguments, **more)

    monkeypatch.setattr(module, name, count)
    next_turn()
    monkeypatch.setattr(turns, "_SLICE", 0.0)
    return calls


async def test_a_list_of_many_sessions_is_made_in_turns(
    store: NamedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    async with connected(store, host) as connection:
        calls = counted(monkeypatch, sessions_module, "encode_item")
        for refresh in (False, True):
            found = await connection.call(List(refresh))
            assert [record["name"] for record in found] == [f"session {number}" for number in range(COUNT)]
        assert max(calls.values()) <= 2


async def test_those_who_follow_a_flood_of_events_take_turns(
    store: NamedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    async with connected(store, host) as connection:
        calls = counted(monkeypatch, client_module, "encode_reply")
        last = (await connection.call(Executions("0" * 32)))[0]["id"]

        async def follow() -> int:
            return len([event async for event in connection.follow(Follow(last))])

        assert await asyncio.gather(*(follow() for _ in range(5))) == [COUNT] * 5
        assert max(calls.values()) <= 5 + 2


@pytest.mark.slow
async def test_a_list_of_executions_has_an_end(
    store: NamedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    monkeypatch.setattr(journal, "MAX_LISTED", 100)
    async with connected(store, host) as connection:
        assert len(await connection.call(Executions("0" * 32, 1_000_000))) == 100


def request(kind: str, number: int, body: bytes = b"", **fields: Any) -> bytes:
    return encode_frame({"type": kind, "id": number, "fields": fields}, body, max_body=len(body))


@asynccontextmanager
async def raw_client(zygote_host: Host, workspace: Path) -> AsyncIterator[tuple[Server, socket.socket]]:
    """A socket to a daemon that has one session, ``one``, for those who write the bytes themselves."""
    server = Server(NamedSessions(zygote_host))
    ours = await connect(server)
    ours.setblocking(False)
    await server.sessions.create("one", {"sandbox": False, "working_dir": str(workspace), "recovery": "none"}, {}, fresh=True)
    try:
        yield server, ours
    finally:
        ours.close()
        await server.sessions.close()


async def answers(sock: socket.socket, count: int) -> list[tuple[int, Any]]:
    """Read answers, and forget what is in them."""
    parser, found = FrameParser(MAX_REPLY), list[tuple[int, Any]]()
    while len(found) < count:
        data = await asyncio.get_running_loop().sock_recv(sock, 2**20)
        found += [(frame.header["id"], frame.header["type"]) for frame in parser.frames(data)]
    return found


HELLO = request("hello", 1, protocol=PROTOCOL, version="1")


@pytest.mark.slow
async def test_a_client_that_reads_no_answers_does_not_fill_the_memory(zygote_host: Host, tmp_path: Path) -> None:
    """What it asks for is read from disk when it has taken what it has asked for before."""
    count, size = 64, 4 * 2**20
    (tmp_path / "large").write_bytes(bytes(size))
    async with raw_client(zygote_host, tmp_path) as (server, sock):
        wanted = (request("read file", number, session="one", path="large") for number in range(2, count + 2))
        tracemalloc.start()
        try:
            await asyncio.get_running_loop().sock_sendall(sock, HELLO + b"".join(wanted))
            other = await answer(server, Submit("one"), b"1")  # the daemon goes on meanwhile
            await server.sessions.executions.find(other["id"])[1].wait()
            assert [number for number, _ in await answers(sock, count + 1)] == [*range(1, count + 2)]
            assert tracemalloc.get_traced_memory()[1] < 12 * size
        finally:
            tracemalloc.stop()


@pytest.mark.slow
async def test_only_so_many_requests_of_a_client_are_worked_on_at_once(zygote_host: Host, tmp_path: Path) -> None:
    """Also those that have come with others in one piece; the rest is worked on later, and nothing is lost."""
    os.mkfifo(go := tmp_path / "go")
    async with raw_client(zygote_host, tmp_path) as (server, sock):
        execution = (await answer(server, Submit("one"), f"open({str(go)!r}).read()".encode()))["id"]
        following = b"".join(request("follow", number, execution=execution) for number in range(2, 802))
        before = len(asyncio.all_tasks())
        await asyncio.get_running_loop().sock_sendall(sock, HELLO + following)
        assert await answers(sock, 1) == [(1, "reply")]
        await eventually(lambda: len(asyncio.all_tasks()) - before >= client_module._AT_ONCE)
        assert len(asyncio.all_tasks()) - before <= client_module._AT_ONCE + 8
        await asyncio.to_thread(go.write_text, "")
        ends, parser = set[int](), FrameParser()
        while len(ends) < 800:
            data = await asyncio.get_running_loop().sock_recv(sock, 2**20)
            ends |= {frame.header["id"] for frame in parser.frames(data) if not frame.header["more"]}
        assert ends == {*range(2, 802)}


async def test_only_so_many_bytes_of_requests_are_held_for_a_client(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_REQUEST", 2**20)
    size, count = 2**19, 32
    os.mkfifo(go := tmp_path / "go")
    async with raw_client(zygote_host, tmp_path) as (server, sock):
        await answer(server, Submit("one"), f"open({str(go)!r}).read()".encode())
        wanted = [request("complete", number, b" " * size, session="one") for number in range(2, count + 2)]
        before = len(asyncio.all_tasks())
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(sock, HELLO + b"".join(wanted)))
        assert await answers(sock, 1) == [(1, "reply")]
        await eventually(lambda: len(asyncio.all_tasks()) - before >= 3)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not sending.done()
        await asyncio.to_thread(go.write_text, "")
        assert {number for number, _ in await answers(sock, count)} == {*range(2, count + 2)}
        await sending
