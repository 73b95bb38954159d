"""What the daemon answers: to requests that come while it ends, and to clients of other versions."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cellblock import DaemonError, Host, InvalidInputError, NotRunError, OutcomeUnknownError, StateError
from cellblock.operations.base import PROTOCOL, Request
from cellblock.operations.checkpoints import Fork
from cellblock.operations.executions import Answer, Follow, Submit
from cellblock.operations.sessions import Create, Destroy, End, Hello, List
from cellblock.service.daemon.async_connection import AsyncConnection
from cellblock.service.daemon.daemon_connection import Connection
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.in_process import connect
from cellblock.service.daemon.link import DaemonLink
from cellblock.service.named import executions, stdin
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.wire.frames import encode_frame
from processes import eventually

OPTIONS = {"sandbox": False}


@pytest.fixture
async def server(zygote_host: Host) -> AsyncIterator[Server]:
    server = Server(NamedSessions(zygote_host))
    yield server
    await server.sessions.close()
    for client in [*server.clients]:
        client.abort()


async def test_a_daemon_that_ends_takes_no_request_and_answers_what_it_has_taken(server: Server, tmp_path: Path) -> None:
    os.mkfifo(go := tmp_path / "go")
    connection = await AsyncConnection.open(await connect(server), "1")
    await connection.call(Create("one", OPTIONS))
    running = asyncio.create_task(
        connection.call(Submit("one", wait=True), f"input = open({str(go)!r}).read(); 1 + 1".encode())
    )
    await eventually(lambda: server.sessions.find("one").executions)
    server.asked_to_end.set()
    with pytest.raises(NotRunError, match="the request was not sent"):
        await connection.call(Submit("one", wait=True), b"1")
    assert not connection.usable
    await asyncio.to_thread(go.write_text, "")
    assert (await running)["return_value"] == "2"
    await connection.close()
    with pytest.raises(NotRunError):
        await AsyncConnection.open(await connect(server), "1")


async def test_a_session_that_the_end_keeps_from_starting_is_made_by_the_next_daemon(server: Server) -> None:
    connection = await AsyncConnection.open(await connect(server), "1")
    making = asyncio.create_task(connection.call(Create("one", {**OPTIONS, "startup_code": "import time; time.sleep(60)"})))
    await eventually(lambda: server.sessions.kernels)
    server.asked_to_end.set()
    await server.sessions.end_kernels()
    with pytest.raises(NotRunError, match="the request was not sent"):
        await making
    await connection.close()


async def test_the_gateway_asks_the_next_daemon(server: Server, zygote_host: Host) -> None:
    following = Server(NamedSessions(zygote_host))
    servers = [server, following]

    async def next_one() -> socket.socket:
        return await connect(servers[0] if not servers[0].ending else servers[1])

    link = DaemonLink(connect=next_one)
    await link.call(Create("one", OPTIONS))
    await following.sessions.create("one", OPTIONS)
    server.asked_to_end.set()
    events = [event["kind"] async for event in link.follow(Submit("one", follow=True), b"1")]
    assert events == ["begun", "result"]
    assert following.sessions.find("one").current is not None
    following.asked_to_end.set()
    servers.append(Server(NamedSessions(zygote_host)))
    del servers[0]
    assert await link.call(List()) == []
    await link.close()
    for other in (following, servers[1]):
        await other.sessions.close()
        for client in [*other.clients]:
            client.abort()


async def test_the_gateway_repeats_code_that_has_a_key_and_nothing_that_has_none(server: Server, tmp_path: Path) -> None:
    link = DaemonLink(connect=lambda: connect(server))
    await link.call(Create("one", OPTIONS))
    os.mkfifo(go := tmp_path / "go")
    code = f"runs = globals().get('runs', 0) + 1; open({str(go)!r}).read(); runs"
    running = asyncio.create_task(link.call(Submit("one", key="k", wait=True), code.encode()))
    await eventually(lambda: server.sessions.find("one").executions)
    other = asyncio.create_task(link.call(Submit("one", wait=True), b"1"))
    await eventually(lambda: len(server.sessions.find("one").executions) == 2)
    for client in [*server.clients]:
        client.abort()
    with pytest.raises(OutcomeUnknownError, match="it is not known whether 'submit' was carried out"):
        await other
    await asyncio.to_thread(go.write_text, "")
    assert (await running)["return_value"] == "1"
    await link.close()


@pytest.mark.parametrize("theirs", [PROTOCOL - 1, PROTOCOL + 1])
async def test_a_client_of_another_version_can_only_have_it_end(server: Server, theirs: int) -> None:
    _, connection = await asyncio.get_running_loop().create_unix_connection(AsyncConnection, sock=await connect(server))
    for request in (Hello(theirs, "7"), List()):
        with pytest.raises(
            DaemonError, match=rf"protocol {PROTOCOL}\) and this client 7 \({theirs}\): 'cellblock daemon restart' replaces it"
        ):
            await connection.call(request)
    assert await connection.call(End())
    assert server.ending
    await connection.close()


async def test_a_request_that_the_daemon_cannot_read_is_an_error_that_says_what_to_do(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_a_new_field(number: int, request: Request[Any], body: bytes = b"") -> bytes:
        return encode_frame({"type": request.op, "id": number, "fields": {"new": True}}, body, max_body=0)

    plain = await asyncio.to_thread(Connection, await connect(server), "1")
    waiting = await AsyncConnection.open(await connect(server), "1")
    for module in ("daemon_connection", "async_connection"):
        monkeypatch.setattr(f"cellblock.service.daemon.{module}.encode_request", with_a_new_field)
    with pytest.raises(DaemonError, match=r"'new' is unknown.* 'cellblock daemon stop' ends it"):
        await asyncio.to_thread(plain.call, List())
    assert not plain.usable
    with pytest.raises(DaemonError, match=r"'new' is unknown.* 'cellblock daemon stop' ends it"):
        await waiting.call(List())
    await waiting.close()


async def test_a_client_that_comes_back_can_answer_input(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdin, "REJOIN", 60)
    first, second, third = [await AsyncConnection.open(await connect(server), "1") for _ in range(3)]
    await first.call(Create("one", OPTIONS))
    code = b"line = input('a? ')\ntry:\n    input('b? ')\nexcept EOFError:\n    print('ended', line)"
    number = (await first.call(Submit("one", stdin=True), code))["id"]
    execution = server.sessions.executions.find(number)[1]
    assert isinstance(execution, executions.Execution)
    async with aclosing(first.follow(Follow(number, answers=True))) as events:
        await anext(event async for event in events if event["kind"] == "input")
    await first.close()
    async with aclosing(second.follow(Follow(number, answers=True))) as events:
        asked = (event async for event in events if event["kind"] == "input")
        assert (await anext(asked))["data"]["prompt"] == "a? "
        assert await third.call(Answer(number), b"line")
        assert (await anext(asked))["data"]["prompt"] == "b? "
    monkeypatch.setattr(stdin, "REJOIN", 0)
    await second.close()
    assert ((await execution.wait()).text or "").endswith("ended line")
    await third.close()


async def test_what_asks_a_session_that_is_being_ended_is_told_so(server: Server, tmp_path: Path) -> None:
    """The kernel that is killed by that has not died: it was told to go."""
    os.mkfifo(wait := tmp_path / "wait")
    connection, other = [await AsyncConnection.open(await connect(server), "1") for _ in range(2)]
    await connection.call(Create("one", {**OPTIONS, "recovery": "none"}))
    code = f"import os; begun = lambda: (open({str(tmp_path / 'begun')!r}, 'w'), open({str(wait)!r}).read())\n"
    result = await connection.call(Submit("one", wait=True), f"{code}os.register_at_fork(before=begun)".encode())
    assert result["status"] == "success"
    forking = asyncio.create_task(connection.call(Fork("one", ("a", "b"))))
    await eventually((tmp_path / "begun").exists)
    assert await other.call(Destroy("one")) is True
    with pytest.raises(StateError, match="session 'one' was ended before 'fork' was done"):
        await forking
    assert await other.call(List()) == []
    await connection.close()
    await other.close()


@pytest.mark.slow
async def test_a_large_answer_comes_whole_between_others(server: Server) -> None:
    """It is sent piece by piece, and on one connection others are asked meanwhile."""
    connection = await AsyncConnection.open(await connect(server), "1")
    await connection.call(Create("one", OPTIONS))
    await connection.call(Create("two", OPTIONS))
    large = asyncio.create_task(connection.call(Submit("one", wait=True), b"'x' * 3_000_000"))
    small = [asyncio.create_task(connection.call(Submit("two", wait=True), f"{number}".encode())) for number in range(20)]
    lists = [asyncio.create_task(connection.call(List())) for _ in range(20)]
    result = await large
    assert result["return_value"] == result["text"] == repr("x" * 3_000_000)
    assert [(await task)["return_value"] for task in small] == [str(number) for number in range(20)]
    assert [len(await task) for task in lists] == [2] * 20
    await connection.close()


async def test_code_that_is_not_utf_8_is_the_clients_mistake(server: Server) -> None:
    connection = await AsyncConnection.open(await connect(server), "1")
    await connection.call(Create("one", OPTIONS))
    for request in (Submit("one"), Submit("one", wait=True), Submit("one", follow=True)):
        with pytest.raises(InvalidInputError, match=r"the code is not UTF-8: invalid start byte at byte 2"):
            await connection.call(request, b"1\n\xff")
    assert (await connection.call(Submit("one", wait=True), b"6 * 7"))["return_value"] == "42"
    await connection.close()
