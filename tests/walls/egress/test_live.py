"""Rules that change while connections and questions exist: each decision uses the old or the new rules, never both."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from cellblock.errors import ConflictError, InvalidInputError, StateError, StoreError
from cellblock.walls.egress.gate import DeniedError, EgressLimits, Gate
from cellblock.walls.egress.live import MAX_LINES, LiveNetwork
from cellblock.walls.egress.names import Address, Target
from cellblock.walls.egress.rules import Denial
from cellblock.walls.sandbox.policy import Network
from processes import eventually

from .conftest import Starter, tunnel

PUBLIC = "93.184.215.14"


def live(*allow: str, deny: Sequence[str] = (), ask: bool = False, ceiling: Network | None = None) -> LiveNetwork:
    return LiveNetwork.of(Network(allow, tuple(deny), ask), ceiling)


async def test_the_lists_change_and_each_change_has_a_number() -> None:
    network = live("A.example", "*.b.example:8443")
    assert network.state.allow == ("a.example", "*.b.example:8443")
    await network.change(allow=["c.example", "C.example."], deny=["d.example"])
    await network.change(remove=["A.EXAMPLE"])
    assert network.state.allow == ("*.b.example:8443", "c.example")
    assert (network.state.deny, network.state.revision) == (("d.example",), 2)
    await network.change(allow=["c.example"])  # nothing new
    await network.change(remove=["d.example"])
    assert (network.state.deny, network.state.revision) == ((), 3)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"expect": 1, "allow": ["b.example"]}, ConflictError, "has revision 0, not 1"),
        ({"allow": ["http://x"]}, InvalidInputError, "Write a host, not a URL"),
        ({"allow": "b.example"}, InvalidInputError, "a list of patterns"),
        ({"remove": ["b.example"]}, InvalidInputError, "no line 'b.example' is in the network's lists"),
        ({"remove": ["bad.example"]}, InvalidInputError, "the policy denies 'bad.example'"),
        ({"allow": ["a.example"], "remove": ["a.example"]}, InvalidInputError, "both added and removed"),
        ({"deny": ["x.example private"]}, InvalidInputError, "has no effect"),
        ({"allow": [f"h{number}.example" for number in range(MAX_LINES)]}, InvalidInputError, f"at most {MAX_LINES} lines"),
    ],
)
async def test_a_wrong_change_changes_nothing(change: dict[str, Any], error: type[Exception], told: str) -> None:
    network = live("a.example", deny=["bad.example"])
    before, recorded = network.state, []

    async def record(lists: object) -> None:
        recorded.append(lists)

    with pytest.raises(error, match=told):
        await network.change(**change, record=record)
    assert network.state is before
    assert recorded == []


async def test_the_hosts_policy_is_the_ceiling() -> None:
    network = live("a.example", ceiling=Network(("*.example",)))
    await network.change(allow=["b.example"])
    with pytest.raises(InvalidInputError, match=r"'c\.test' is not allowed by the host's policy"):
        await network.change(allow=["c.test"])
    assert (network.can_allow("d.example"), network.can_allow("c.test")) == (True, False)
    # Where a person may be asked about any host, a person may allow it.
    await live("a.example", ceiling=Network(("*.example",), ask=True)).change(allow=["c.test"])


async def test_a_change_takes_effect_after_its_record() -> None:
    network = live("a.example")
    heard: list[str] = []

    async def record(lists: Any) -> None:
        heard.append(f"recorded {lists['allow']} with {network.state.allow}")

    network.keep = lambda state: heard.append(f"kept {state['allow']} with {network.state.allow}")
    await network.change(allow=["b.example"], record=record)
    assert heard == ["recorded ['b.example'] with ('a.example',)", "kept ['a.example', 'b.example'] with ('a.example',)"]

    def fail(_: object) -> None:
        raise StoreError("the disk is full")

    network.keep = fail
    with pytest.raises(StoreError):
        await network.change(allow=["c.example"])
    assert (network.state.allow, network.state.revision) == (("a.example", "b.example"), 1)


async def test_a_closed_network_cannot_be_widened() -> None:
    network = live("a.example", "b.example", ask=True)
    await network.close_to(["b.example", "c.example"])
    with pytest.raises(StateError, match="closed permanently"):
        await network.change(allow=["a.example"])
    rules = network.state.rules
    assert [rules.judge(Target(f"{name}.example", 443)) is None for name in "abc"] == [False, True, False]
    assert (network.state.ask, network.can_allow("a.example")) == (False, False)
    again = live("a.example", "b.example", ask=True)
    again.resume(network.state.allow, network.state.deny, network.state.revision, closed=True)
    assert [again.state.rules.judge(Target(f"{name}.example", 443)) is None for name in "abc"] == [False, True, False]


async def test_a_stored_state_stays_within_the_ceiling() -> None:
    network = live("a.example", deny=["bad.example"], ceiling=Network(("*.example",)))
    network.resume(["b.example", "c.test"], ["worse.example"], 7)
    assert network.state.allow == ("b.example",)
    assert (network.state.deny, network.state.revision) == (("bad.example", "worse.example"), 7)


class World:
    """A gate whose lookups and dials wait until they are let go."""

    def __init__(self, network: LiveNetwork, *, held: str = "") -> None:
        self.held = held
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.steps: list[str] = []
        self.denials: list[Denial] = []
        self.asked: asyncio.Queue[asyncio.Future[bool]] = asyncio.Queue()
        self.gate = Gate(network, EgressLimits(), self.denials.append, self.resolve, self.dial, self.ask)
        self.client, self.served = socket.socketpair()
        self.sockets = [self.client, self.served]

    async def _at(self, step: str) -> None:
        self.steps.append(step)
        if step == self.held:
            self.reached.set()
            await self.go.wait()

    async def resolve(self, _: str) -> Sequence[str]:
        await self._at("lookup")
        return [PUBLIC]

    async def dial(self, _: Address, __: int) -> socket.socket:
        await self._at("dial")
        pair = socket.socketpair()
        self.sockets += pair
        return pair[0]

    async def ask(self, _: str, __: int) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(answer)
        return await answer

    def open(self) -> asyncio.Task[socket.socket]:
        return asyncio.create_task(self.gate.open(Target("a.example", 443), "CONNECT", self.served))

    async def close(self) -> None:
        await self.gate.close()
        for one in self.sockets:
            one.close()


@pytest.mark.parametrize("change", [{"remove": ["a.example"]}, {"deny": ["a.example"]}, {"deny": [f"{PUBLIC}:443"]}])
@pytest.mark.parametrize("moment", ["lookup", "dial"])
async def test_a_connection_begun_by_the_old_rules_does_not_outlive_them(moment: str, change: Any) -> None:
    network = live("a.example")
    world = World(network, held=moment)
    opening = world.open()
    await world.reached.wait()
    closed = await network.change(**change)
    world.go.set()
    if moment == "lookup" and change == {"deny": [f"{PUBLIC}:443"]}:  # its address is not known yet
        with pytest.raises(DeniedError):
            await opening
        assert (closed, world.steps) == (0, ["lookup"])
    else:
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert (closed, world.steps[-1]) == (1, moment)
    await world.close()


async def test_what_both_rules_allow_goes_on_during_a_change() -> None:
    network = live("a.example", "b.example")
    world = World(network, held="dial")
    opening = world.open()
    await world.reached.wait()
    assert await network.change(allow=["c.example"], remove=["b.example"], deny=["d.example"]) == 0
    world.go.set()
    await opening
    await world.close()


async def test_a_waiting_question_is_judged_anew() -> None:
    cases: list[tuple[Any, bool | None]] = [
        ({"allow": ["a.example"]}, True),
        ({"deny": ["a.example"]}, False),
        ({"allow": ["b.example"]}, None),
    ]
    for change, opened in cases:
        network = live(ask=True)
        world = World(network)
        opening = world.open()
        question = await world.asked.get()
        await network.change(**change)
        if opened is None:
            await asyncio.sleep(0.01)
            assert not opening.done()
            assert world.asked.empty()  # it is not asked a second time
            question.set_result(True)
            await opening
        elif opened:
            await opening
            assert question.cancelled()
        else:
            with pytest.raises(DeniedError, match=r"the rule 'a\.example' denies it"):
                await opening
            assert question.cancelled()
        await world.close()


async def test_what_a_person_let_through_once_survives_changes_until_a_line_denies_it() -> None:
    network = live(ask=True)
    world = World(network)
    opening = world.open()
    (await world.asked.get()).set_result(True)
    await opening
    assert await network.change(allow=["b.example"]) == 0
    assert await network.change(deny=["*"]) == 1
    await world.close()


async def test_tunnels_to_a_removed_host_are_reset_and_others_go_on(start: Starter) -> None:
    port, other = await start.echo(), await start.echo()
    running = await start.proxy(f"127.0.0.1:{port}", f"127.0.0.1:{other}")
    tunnels = []
    for to in (port, other):
        reader, writer = await tunnel(running, to, "127.0.0.1")
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        tunnels.append((reader, writer))
    assert await running.network.change(remove=[f"127.0.0.1:{port}"]) == 1
    (reader, _), (going, on) = tunnels
    with pytest.raises(ConnectionResetError):
        await reader.read()
    on.write(b"after")
    assert await going.readexactly(5) == b"after"
    assert await running.connect_status(f"127.0.0.1:{port}") == 403
    for _, writer in tunnels:
        writer.close()


async def test_a_kept_connection_of_plain_http_goes_on_and_its_next_request_is_judged_anew(start: Starter) -> None:
    port, _ = await start.http()
    running = await start.proxy(f"127.0.0.1:{port}")
    reader, writer = await running.connect()
    request = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    writer.write(request)
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
    await eventually(lambda: not running.proxy._gate._passages)
    assert await running.network.change(remove=[f"127.0.0.1:{port}"]) == 0
    writer.write(request)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 403")
    writer.close()


async def test_closing_a_network_ends_all_connections(start: Starter) -> None:
    port = await start.echo()
    running = await start.proxy(f"127.0.0.1:{port}")
    reader, writer = await running.connect()
    writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await running.network.close_to([f"127.0.0.1:{port}"])
    with pytest.raises(ConnectionResetError):
        await reader.read()
    assert await running.connect_status(f"127.0.0.1:{port}") == 200
    writer.close()


# --- Request lines


async def test_a_tunnel_to_a_host_that_gets_a_line_is_reset(start: Starter) -> None:
    port = await start.echo()
    running = await start.proxy(f"127.0.0.1:{port}")
    reader, writer = await running.connect()
    writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await running.network.change(http=[f"GET 127.0.0.2:{port}/a"]) == 0
    assert await running.network.change(http=[f"GET 127.0.0.1:{port}/a"]) == 1
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


def lines(*http: str, allow: Sequence[str] = (), ceiling: Network | None = None) -> LiveNetwork:
    return LiveNetwork.of(Network(tuple(allow), http=http), ceiling)


async def test_request_lines_come_with_their_hosts_and_go_with_them() -> None:
    network = lines(allow=["a.example", "*.b.example"])
    await network.change(http=["GET x.b.example/**", "GET  C.example/v1/*", "deny * d.example/**"])
    assert [*network.state.allow] == ["a.example", "*.b.example", "c.example"]
    assert [*network.state.http] == ["GET x.b.example/**", "GET c.example/v1/*", "deny * d.example/**"]
    await network.change(http=["POST c.example/v1/*"], remove=["GET c.example/v1/*"])
    assert "c.example" in network.state.allow
    # Without its last line, a host would get every request.
    await network.change(remove=["POST c.example/v1/*"])
    assert [*network.state.allow] == ["a.example", "*.b.example"]
    await network.change(http=["GET c.example/**"])
    await network.change(allow=["c.example"], remove=["GET c.example/**"])
    assert "c.example" in network.state.allow
    again = lines()
    again.resume(**network.state.stored())
    assert again.state.http == network.state.http
    again = lines("GET a.example/**")
    again.resume(["a.example"], [], 3)  # from a version without lines
    assert [*again.state.http] == ["GET a.example/**"]


async def test_a_wrong_change_of_lines_changes_nothing() -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"http": ["get a.example/"]}, InvalidInputError, "in capitals"),
        ({"http": "GET a.example/"}, InvalidInputError, "are a list"),
        ({"remove": "GET a.example/"}, InvalidInputError, "are a list"),
        ({"remove": ["GET a.example/x"]}, InvalidInputError, "no line 'GET a.example/x' is in the network's lists"),
        ({"remove": ["deny POST a.example/**"]}, InvalidInputError, "the policy denies"),
        ({"http": ["GET other.example/"]}, InvalidInputError, "'other.example' is not allowed by the host's policy"),
        ({"allow": ["*"]}, InvalidInputError, "by their addresses"),
        ({"http": [f"GET a.example/{number}" for number in range(200)]}, InvalidInputError, "can have 200 request lines"),
    ]
    for change, error, told in cases:
        network = lines("deny POST a.example/**", allow=["a.example"], ceiling=Network(("a.example", "*")))
        before = network.state
        with pytest.raises(error, match=re.escape(told)):
            await network.change(**change)
        assert network.state is before


async def test_lines_cannot_be_added_while_every_host_is_allowed_or_the_network_is_closed() -> None:
    network = lines(allow=["*", "a.example"])
    with pytest.raises(InvalidInputError, match="by their addresses"):
        await network.change(http=["GET a.example/**"])
    await network.change(http=["GET a.example/**"], remove=["*"])
    await network.close_to(["a.example"])
    with pytest.raises(StateError, match="closed permanently"):
        await network.change(http=["POST a.example/**"])
    await network.change(http=["deny GET a.example/private"])
