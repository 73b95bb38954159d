"""Hosts that no rule names, where somebody is asked about them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from cellblock.egress.gate import DeniedError, EgressLimits, Gate
from cellblock.egress.names import Address, Target
from cellblock.egress.rules import Denial, Rules

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
        self.gate = Gate(rules, EgressLimits(), self.denials.append, self.resolve, self.dial, self.ask)

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
        (await there.gate.open(Target("asked.test", 443), "CONNECT")).close()
        assert there.asked == [("asked.test", 443)]
        assert there.dialled == ["93.184.215.14:443"]
        assert there.denials == []


async def test_what_is_not_let_through_is_refused_and_reported() -> None:
    async with world(False) as there:
        with pytest.raises(DeniedError):
            await there.gate.open(Target("asked.test", 443), "CONNECT")
        assert (len(there.asked), len(there.denials), there.dialled) == (1, 1, [])


async def test_what_a_rule_allows_or_denies_is_not_asked_for() -> None:
    async with world(True, "asked.test", denied=["inner.test"]) as there:
        (await there.gate.open(Target("asked.test", 443), "CONNECT")).close()
        with pytest.raises(DeniedError):
            await there.gate.open(Target("inner.test", 443), "CONNECT")
        assert there.asked == []


@pytest.mark.parametrize("name", ["inner.test", "mixed.test"])
async def test_nobody_can_let_an_inner_address_through(name: str) -> None:
    async with world(True) as there:
        with pytest.raises(DeniedError):
            await there.gate.open(Target(name, 443), "CONNECT")
        assert (there.asked, there.dialled) == ([(name, 443)], [])


async def test_waiting_for_an_answer_takes_nothing_off_the_time_to_connect() -> None:
    async with world(True) as there:
        there.gate._limits = EgressLimits(connect_seconds=0.05)

        async def slow(host: str, port: int) -> bool:
            await asyncio.sleep(0.2)
            return True

        there.gate._ask = slow
        (await there.gate.open(Target("asked.test", 443), "CONNECT")).close()
