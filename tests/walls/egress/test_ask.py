"""Clients of a proxy that wait while somebody is asked about their host. test_gate.py has the decisions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from processes import eventually

from .conftest import Running, Starter

NAMES = {"asked.test": ["93.184.215.14"]}


class Person:
    """Somebody who thinks about each question until `answer` is set, and takes note of those that are withdrawn."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.withdrawn = 0

    async def decide(self, host: str, port: int) -> bool:
        self.asked.set()
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise


CONNECT = b"CONNECT asked.test:443 HTTP/1.1\r\nHost: asked.test:443\r\n\r\n"
PLAIN = b"GET http://asked.test/ HTTP/1.1\r\nHost: asked.test\r\n\r\n"
SOCKS = b"\x05\x01\x00" + b"\x05\x01\x00\x03\x0aasked.test\x01\xbb"


@asynccontextmanager
async def asking(start: Starter, person: Person, request: bytes) -> AsyncIterator[tuple[Running, socket.socket]]:
    """Have a client of a proxy ask for a host, until a person thinks about it."""
    running = await start.proxy(names=NAMES, ask=person.decide)
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        client.sendall(request)
        await asyncio.wait_for(person.asked.wait(), 30)
        yield running, client


@pytest.mark.parametrize(
    "request_", [CONNECT, CONNECT + b"early bytes", PLAIN, SOCKS], ids=["CONNECT", "early", "plain", "SOCKS5"]
)
async def test_a_question_ends_with_its_client_and_a_late_answer_dials_nothing(start: Starter, request_: bytes) -> None:
    person = Person()
    async with asking(start, person, request_) as (running, client):
        client.close()
        await eventually(lambda: person.withdrawn == 1)
        person.answer.set_result(True)
        await eventually(lambda: running.connections == 0)
        assert running.dialled == running.lookups == []


async def test_bytes_that_come_early_do_not_end_a_question(start: Starter) -> None:
    person = Person()
    async with asking(start, person, CONNECT + b"early") as (running, client):
        client.sendall(b" bytes")
        assert await running.connect_status("other:0") == 403  # the loop has seen the bytes
        person.answer.set_result(True)
        await eventually(lambda: running.dialled)
        assert person.withdrawn == 0


async def test_withdrawn_questions_are_refused_connections(start: Starter) -> None:
    person = Person()
    async with asking(start, person, CONNECT) as (running, client):
        running.proxy.withdraw_questions()
        assert (await asyncio.to_thread(client.recv, 4096)).startswith(b"HTTP/1.1 403 Forbidden")
        assert (person.withdrawn, running.dialled) == (1, [])
