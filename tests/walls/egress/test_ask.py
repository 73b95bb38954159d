"""Hosts that no rule names, where somebody is asked about them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from cellblock.walls.egress.gate import DeniedError, EgressLimits, Gate
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.names import Address, Target
from cellblock.walls.egress.rules import Denial, Rules
from clocks import Clock
from processes import eventually

from .conftest import Running, Starter

NAMES = {"asked.test": ["93.184.215.14"], "inner.test": ["10.0.0.1"], "mixed.test": ["93.184.215.14", "127.0.0.1"]}


class World:
    """Names, addresses and somebody to ask."""

    def __init__(self, answer: bool, *patterns: str, denied: Sequence[str] = ()) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int]] = []
        self.dialled: list[str] = []
        self.denials: list[Denial] = []
        self.peers: list[socket.socket] = []
        rules = Rules.parse(patterns, denied)
        self.gate = Gate(LiveNetwork(rules), EgressLimits(), self.denials.append, self.resolve, self.dial, self.ask)
        self.client, self.served = socket.socketpair()
        self.peers += [self.client, self.served]

    async def open(self, name: str) -> socket.socket:
        return await self.gate.open(Target(name, 443), "CONNECT", self.served)

    async def ask(self, host: str, port: int) -> bool:
        assert not self.dialled
        self.asked.append((host, port))
        return self.answer

    async def resolve(self, name: str) -> Sequence[str]:
        return NAMES[name]

    async def dial(self, address: Address, port: int) -> socket.socket:
        self.dialled.append(f"{address}:{port}")
        here, there = socket.socketpair()
        self.peers.append(there)
        return here


@asynccontextmanager
async def world(answer: bool, *patterns: str, denied: Sequence[str] = ()) -> AsyncIterator[World]:
    made = World(answer, *patterns, denied=denied)
    try:
        yield made
    finally:
        await made.gate.close()
        for peer in made.peers:
            peer.close()


async def test_what_is_let_through_is_dialled() -> None:
    async with world(True) as there:
        (await there.open("asked.test")).close()
        assert there.asked == [("asked.test", 443)]
        assert there.dialled == ["93.184.215.14:443"]
        assert there.denials == []


async def test_what_is_not_let_through_is_refused_and_reported() -> None:
    async with world(False) as there:
        with pytest.raises(DeniedError):
            await there.open("asked.test")
        assert (len(there.asked), len(there.denials), there.dialled) == (1, 1, [])


async def test_what_a_rule_allows_or_denies_is_not_asked_for() -> None:
    async with world(True, "asked.test", denied=["inner.test"]) as there:
        (await there.open("asked.test")).close()
        with pytest.raises(DeniedError):
            await there.open("inner.test")
        assert there.asked == []


async def test_nobody_can_let_an_inner_address_through() -> None:
    for name in ("inner.test", "mixed.test"):
        async with world(True) as there:
            with pytest.raises(DeniedError):
                await there.open(name)
            assert (there.asked, there.dialled) == ([(name, 443)], [])


async def test_waiting_for_an_answer_takes_nothing_off_the_time_to_connect() -> None:
    with Clock() as clock:
        async with world(True) as there:

            async def slow(host: str, port: int) -> bool:
                await clock.advance(2 * EgressLimits().connect_seconds)
                return True

            there.gate._ask = slow
            (await there.open("asked.test")).close()


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


async def test_a_cancelled_question_leaves_nothing_whenever_that_comes() -> None:
    for turns in range(12):
        async with world(True) as there:
            opening = asyncio.ensure_future(there.open("asked.test"))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with suppress(asyncio.CancelledError):
                (await opening).close()
