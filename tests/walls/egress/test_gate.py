"""The gate decides about a target, looks it up once, checks every address, and dials what was checked."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from cellblock.walls.egress.gate import DeniedError, EgressLimits, Gate, UnreachableError, dial, resolve
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.names import Address, Target, canonical_host
from cellblock.walls.egress.rules import Denial, Rules
from clocks import Clock

PUBLIC, OTHER, METADATA = "93.184.216.34", "93.184.216.35", "169.254.169.254"


@contextmanager
def client() -> Iterator[socket.socket]:
    """Give the proxy's end of a client that does not hang up."""
    there, served = socket.socketpair()
    with there, served:
        yield served


@pytest.fixture
def served() -> Iterator[socket.socket]:
    with client() as end:
        yield end


class World:
    """Names, hosts that refuse, and what was asked of both."""

    def __init__(self, names: dict[str, list[str]], refusing: tuple[str, ...] = ()) -> None:
        self.names = names
        self.refusing = refusing
        self.looked_up: list[str] = []
        self.dialled: list[str] = []
        self.denied: list[Denial] = []
        self.asked: list[tuple[str, int]] = []
        self.lets_through = False

    async def resolve(self, name: str) -> list[str]:
        self.looked_up.append(name)
        return self.names[name]

    async def dial(self, address: Address, port: int) -> socket.socket:
        self.dialled.append(f"{address}:{port}")
        if str(address) in self.refusing:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        return socket.socket()

    async def ask(self, host: str, port: int) -> bool:
        self.asked.append((host, port))
        return self.lets_through

    async def open(self, host: str, *allowed: str, denied: tuple[str, ...] = (), port: int = 443) -> None:
        rules = Rules.parse(allowed, denied)
        gate = Gate(LiveNetwork(rules), EgressLimits(), self.denied.append, self.resolve, self.dial, self.ask)
        try:
            with client() as served:
                (await gate.open(Target(canonical_host(host), port), "CONNECT", served)).close()
        finally:
            await gate.close()


async def test_an_allowed_name_is_looked_up_once_and_its_address_dialled() -> None:
    world = World({"a.example": [PUBLIC, PUBLIC]})
    await world.open("a.example", "a.example")
    assert (world.looked_up, world.dialled) == (["a.example"], [f"{PUBLIC}:443"])


async def test_what_is_denied_is_not_looked_up_and_nobody_is_asked() -> None:
    world = World({"a.example": [PUBLIC]})
    with pytest.raises(DeniedError):
        await world.open("a.example", "*", denied=("a.example",))
    assert (world.looked_up, world.dialled, world.asked) == ([], [], [])
    assert [denial.host for denial in world.denied] == ["a.example"]


async def test_somebody_is_asked_about_what_no_rule_names() -> None:
    cases: list[bool] = [True, False]
    for yes in cases:
        world = World({"a.example": [PUBLIC]})
        world.lets_through = yes
        if yes:
            await world.open("a.example")
        else:
            with pytest.raises(DeniedError):
                await world.open("a.example")
        assert world.asked == [("a.example", 443)]
        assert world.dialled == [f"{PUBLIC}:443"] * yes
        assert len(world.denied) == (not yes)


async def test_waiting_for_an_answer_takes_nothing_off_the_time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    with Clock() as clock:

        async def slow(host: str, port: int) -> bool:
            await clock.advance(2 * EgressLimits().connect_seconds)
            return True

        world = World({"a.example": [PUBLIC]})
        monkeypatch.setattr(world, "ask", slow)
        await world.open("a.example")


async def test_a_cancelled_question_leaves_nothing_whenever_that_comes() -> None:
    for turns in range(12):
        world = World({"a.example": [PUBLIC]})
        world.lets_through = True
        opening = asyncio.ensure_future(world.open("a.example"))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await opening


async def test_one_bad_address_spoils_a_name_that_a_rule_or_a_person_allows() -> None:
    for found in ([METADATA], [PUBLIC, METADATA], [METADATA, PUBLIC]):
        for allowed in ((), ("a.example",)):
            world = World({"a.example": found})
            world.lets_through = True
            with pytest.raises(DeniedError, match="metadata"):
                await world.open("a.example", *allowed)
            assert world.dialled == []
            assert len(world.asked) == (not allowed)


async def test_the_next_address_is_tried_if_one_refuses() -> None:
    world = World({"a.example": [PUBLIC, OTHER]}, refusing=(PUBLIC,))
    await world.open("a.example", "a.example")
    assert world.dialled == [f"{PUBLIC}:443", f"{OTHER}:443"]


async def test_what_cannot_be_reached_says_why() -> None:
    cases: list[tuple[list[str], str]] = [([], "lookup"), ([PUBLIC], "refused")]
    for found, cause in cases:
        world = World({"a.example": found}, refusing=(PUBLIC,))
        with pytest.raises(UnreachableError) as caught:
            await world.open("a.example", "a.example")
        assert caught.value.cause == cause
        assert world.denied == []


async def test_an_address_is_not_looked_up() -> None:
    world = World({})
    await world.open(PUBLIC, PUBLIC)
    assert (world.looked_up, world.dialled) == ([], [f"{PUBLIC}:443"])


async def test_a_client_that_gives_up_leaves_its_lookup_in_its_slot(served: socket.socket) -> None:
    world = World({})
    started, end = asyncio.Event(), asyncio.Event()

    async def resolve(_name: str) -> list[str]:
        started.set()
        await end.wait()
        return [PUBLIC]

    gate = Gate(LiveNetwork(Rules.parse(["*"])), EgressLimits(), world.denied.append, resolve, world.dial)
    opening = asyncio.create_task(gate.open(Target("a.example", 443), "CONNECT", served))
    await started.wait()
    opening.cancel()
    await asyncio.wait([opening])
    assert len(gate._lookups) == 1
    end.set()
    await gate.close()
    assert not gate._lookups


async def test_what_is_no_address_cannot_be_reached() -> None:
    with pytest.raises(UnreachableError, match="could not be resolved") as caught:
        await World({"a.example": ["not an address"]}).open("a.example", "a.example")
    assert caught.value.cause == "lookup"


async def test_few_addresses_of_a_name_are_considered_however_many_it_has() -> None:
    many = [f"93.184.{number >> 8}.{number & 255}" for number in range(4000)]
    world = World({"a.example": many}, refusing=tuple(many))
    with pytest.raises(UnreachableError):
        await world.open("a.example", "a.example")
    assert world.dialled == [f"{address}:443" for address in many[:32]]


async def test_an_address_that_nobody_checked_is_not_dialled() -> None:
    many = [f"93.184.216.{number}" for number in range(32)]
    world = World({"a.example": [*many, METADATA]}, refusing=tuple(many))
    with pytest.raises(UnreachableError):
        await world.open("a.example", "a.example")
    assert not any(METADATA in address for address in world.dialled)


async def test_a_name_whose_address_changes_is_judged_anew_and_dialled_by_address(
    monkeypatch: pytest.MonkeyPatch, served: socket.socket
) -> None:
    """With the lookup and the dialling that sessions use: the second answer would lead to what nobody allowed."""
    with socket.create_server(("127.0.0.1", 0)) as allowed:
        port = allowed.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)) as secret:
            secret.setblocking(False)
            answers = iter(["127.0.0.1", "127.0.0.2"])

            def getaddrinfo(*_args: object, **_options: object) -> list[object]:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 0))]

            monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
            denied: list[Denial] = []
            rules = Rules.parse([f"fickle.test:{port}", f"127.0.0.1:{port}"])
            gate = Gate(LiveNetwork(rules), EgressLimits(), denied.append, resolve, dial)
            (await gate.open(Target("fickle.test", port), "CONNECT", served)).close()
            with pytest.raises(DeniedError, match="loopback"):
                await gate.open(Target("fickle.test", port), "CONNECT", served)
            await gate.close()
            with pytest.raises(BlockingIOError):
                secret.accept()


async def test_a_flood_of_hosts_to_ask_about_leaves_few_questions_and_clear_denials(served: socket.socket) -> None:
    world = World({"wanted.example": [PUBLIC], "a.example": [PUBLIC]})
    answered = asyncio.Event()
    asked: list[str] = []

    async def ask(host: str, _port: int) -> bool:
        asked.append(host)
        return await answered.wait()

    gate = Gate(LiveNetwork(Rules.parse(["a.example"])), EgressLimits(), world.denied.append, world.resolve, world.dial, ask)
    wanted = asyncio.create_task(gate.open(Target("wanted.example", 443), "CONNECT", served))
    await asyncio.sleep(0)
    flood = [asyncio.create_task(gate.open(Target(f"h{number}.example", 443), "CONNECT", served)) for number in range(1000)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused, waiting = ([task for task in flood if task.done() is done] for done in (True, False))
    (await gate.open(Target("a.example", 443), "CONNECT", served)).close()  # what a rule allows does not wait behind it
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    answered.set()
    (await wanted).close()
    await gate.close()
    assert (len(asked), len(refused), len(waiting)) == (32, 969, 31)
    assert {type(task.exception()) for task in refused} == {DeniedError}
    assert "already wait for approval" in world.denied[0].message
    assert world.denied[0].rule_needed == world.denied[0].host
    assert not gate._questions
