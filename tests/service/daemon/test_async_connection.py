"""A connection of asyncio to the daemon: what it makes of answers."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from pathlib import Path

import pytest

from cellblock.errors import DaemonError, NotRunError
from cellblock.operations.sessions import About
from cellblock.service.daemon import async_connection, starting
from cellblock.service.daemon.async_connection import AsyncConnection
from cellblock.service.daemon.codec import encode_reply
from cellblock.service.daemon.place import Place
from cellblock.wire.frames import FrameParser
from cellblock.wire.packed import Packed, pack


async def answer(sock: socket.socket, *answers: object) -> None:
    """Be a daemon that has these answers."""
    parser = FrameParser(1024 * 1024)
    loop = asyncio.get_running_loop()
    waiting = [*answers]
    while waiting:
        for frame in parser.feed(await loop.sock_recv(sock, 65536)):
            await loop.sock_sendall(sock, b"".join(encode_reply(frame.header["id"], waiting.pop(0))))


async def test_json_data_can_be_left_packed() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        daemon = asyncio.create_task(answer(theirs, {}, {"a": 1}, {"a": 1}, b"raw"))
        connection = await AsyncConnection.open(ours, "1")
        assert await connection.call(About()) == {"a": 1}
        assert await connection.call_packed(About()) == pack({"a": 1})
        assert await connection.call_packed(About()) == b"raw"
        await daemon
        await connection.close()


async def test_a_daemon_that_has_ended_is_known_before_the_loop_hears_of_it() -> None:
    """Otherwise, whoever has asked would take the connection for the next request, and the error for an answer."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    daemon = asyncio.create_task(answer(theirs, {}))
    connection = await AsyncConnection.open(ours, "1")
    await daemon
    theirs.close()
    with pytest.raises(NotRunError):
        await connection.call(About())
    assert not connection.usable
    await connection.close()


async def test_an_answer_that_is_damaged_ends_the_connection() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        daemon = asyncio.create_task(answer(theirs, {}, Packed(b"\0\0\0\5nope")))
        connection = await AsyncConnection.open(ours, "1")
        with pytest.raises(DaemonError, match="the daemon violated the protocol: packed data is damaged"):
            await connection.call(About())
        assert not connection.usable
        await daemon
        await connection.close()


async def test_a_daemon_that_does_not_respond_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    said = rf"the daemon, process {os.getpid()}, does not answer within 0\.1 s"
    for module in (async_connection, starting):
        monkeypatch.setattr(module, "ANSWER", 0.1)
    with place.listen():
        async with asyncio.timeout(60):
            with pytest.raises(DaemonError, match=said):
                await async_connection.open_connection(functools.partial(asyncio.to_thread, starting.connect_or_start, place))
            with pytest.raises(DaemonError, match=said):
                await asyncio.to_thread(starting.open_connection, place)
