"""Decisions about requests: lines, rules and a person, and what hostile code can do about them."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.service.session.http_requests import RequestApprover
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.tools.approvals.rules import Rules
from cellblock.walls.egress.judge import MOST_BODY, MOST_QUESTIONS, JudgedRequest, RequestJudge
from cellblock.walls.egress.lines import WEBSOCKET, Lines
from cellblock.walls.egress.live import LiveNetwork, check_open_hosts
from cellblock.walls.egress.names import parse_authority
from cellblock.walls.egress.rules import Denial, RefusedError
from cellblock.walls.sandbox.policy import Network

HOST = "api.example"


class World:
    """A judge with a person, whose answers a test gives."""

    def __init__(
        self, *lines: str, within: tuple[tuple[str, ...], ...] = (), rules: object = None, closed: bool = False
    ) -> None:
        self.asked: list[ApprovalRequest] = []
        self.denials: list[Denial] = []
        self.rules = Rules() if rules is None else Rules.parse(rules)
        self.broker = Broker(self.rules, self.asked.append, None)
        self.live = LiveNetwork.of(Network(http=lines))
        self.live.state = replace(self.live.state, closed=closed)
        self.judge = RequestJudge(
            self.live,
            [Lines.parse(texts) for texts in within],
            RequestApprover(self.rules, self.broker),
            on_denied=self.denials.append,
        )
        self.client, self.other = socket.socketpair()

    async def decide(self, method: str, url: str, body: bytes = b"", **options: Any) -> RefusedError | None:
        """Return the refusal of a request, or None."""

        async def read() -> bytes:
            return body

        secrets = options.pop("secrets", ())
        request = JudgedRequest(parse_authority(options.pop("at", HOST), 443), method, url, secrets=secrets)
        try:
            await self.judge.decide(request, self.client, read, **options)
        except RefusedError as error:
            return error
        return None

    async def question(self, count: int = 1) -> ApprovalRequest:
        async with asyncio.timeout(10):
            while len(self.asked) < count:
                await asyncio.sleep(0.001)
        return self.asked[-1]

    def close(self) -> None:
        self.client.close()
        self.other.close()


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*lines: str, **options: Any) -> World:
        made.append(World(*lines, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


RULES = {
    "rule": [
        {"decision": "deny", "kind": "http", "arguments": {"host": HOST, "path": "/private"}},
        {"decision": "ask", "kind": "http", "arguments": {"host": HOST, "method": "POST", "path": "/repos/*/issues"}},
        {"decision": "allow", "kind": "http", "arguments": {"host": HOST, "method": "PUT"}},
    ]
}

DECIDED = [
    ("GET", "/repos/a", 0),
    ("HEAD", "/repos/a?x=1", 0),
    ("POST", "/repos/a", 403),
    ("GET", "/", 403),
    ("GET", "/repos/../x", 400),
    ("GET", "/repos/a%2F..%2Fb", 400),
    ("DELETE", "/repos/secret/a", 403),
    ("GET", "/repos/SECRET/a", 403),
    (WEBSOCKET, "/repos/a", 403),
    ("get", "/repos/a", 400),
    ("PUT", "/anything", 0),
    ("PUT", "/private", 403),
    ("PUT", "/private/", 403),
    ("PUT", "/private;a=b", 403),
]


@pytest.mark.parametrize(("method", "url", "status"), DECIDED)
async def test_lines_and_rules_decide(world: Callable[..., World], method: str, url: str, status: int) -> None:
    found = world(f"GET {HOST}/repos/**", f"deny * {HOST}/repos/secret/**", rules=RULES)
    refused = await found.decide(method, url)
    assert (0 if refused is None else refused.status) == status
    assert len(found.denials) == (1 if status else 0)
    assert not found.asked


async def test_no_secret_that_asks_allows_a_websocket(world: Callable[..., World]) -> None:
    """Without lines, the requests to a host are judged because its secret needs approval."""
    for secrets in ((), ("KEY",)):
        assert await world().decide(WEBSOCKET, "/socket", secrets=secrets, ask=bool(secrets)) is not None
    assert await world().decide("GET", "/") is None
    assert await world(f"WEBSOCKET {HOST}/socket").decide(WEBSOCKET, "/socket") is None


async def test_a_host_that_only_a_rule_names_allows_nothing_else(world: Callable[..., World]) -> None:
    found = world(rules={**RULES, "default": "allow"})
    assert found.judge.authorities == {f"{HOST}:80", f"{HOST}:443"}
    assert await found.decide("PUT", "/a") is None
    assert await found.decide("GET", "/a") is not None
    assert await found.decide("GET", "/a", at=f"{HOST}:8443") is not None
    assert await found.decide("GET", "/a", at="other.example") is None
    assert not found.judge.names(parse_authority("other.example", 443))


async def test_a_refusal_says_what_is_allowed_and_how_to_allow_more(world: Callable[..., World]) -> None:
    refused = await world(f"GET {HOST}/**").decide("POST", "/repos/a/b/issues?q=1")
    assert refused is not None
    assert str(refused) == (
        "POST api.example/repos/a/b/issues is not allowed; allowed there: GET /**. To allow it, the person who runs this "
        "session calls cellblock network NAME --allow-http 'POST api.example/repos/a/b/issues', or change_network(http=[…]). "
        "Do not retry."
    )


async def test_a_broader_policy_must_allow_a_request_too(world: Callable[..., World]) -> None:
    found = world(f"* {HOST}/**", within=((f"GET {HOST}/**", f"ask POST {HOST}/a", "GET other.example/**"),), rules=RULES)
    assert await found.decide("GET", "/a") is None
    assert (await found.decide("PUT", "/a")) is not None  # which a rule allows
    assert (await found.decide("POST", "/b")) is not None
    assert (await found.decide("POST", "/", at="other.example")) is not None
    assert not found.asked
    deciding = asyncio.create_task(found.decide("POST", "/a"))
    await (await found.question()).reject()
    assert await deciding is not None


async def test_a_person_sees_the_request_and_its_body(world: Callable[..., World]) -> None:
    found = world(f"ask POST {HOST}/**")
    deciding = asyncio.create_task(found.decide("POST", "/a%20b?q=1", "x\u202ey\u3164".encode(), secrets=("KEY",)))
    request = await found.question()
    assert (request.kind, request.server_name, request.tool_name) == ("http", HOST, "POST")
    assert request.tool_args == {
        "host": HOST,
        "method": "POST",
        "path": "/a b",
        "url": f"https://{HOST}/a%20b?q=1",
        "secrets": ["KEY"],
        "body": "x\u202ey\u3164",
    }
    assert "\\u202e" in str(request)
    assert not {"\u202e", "\u3164"} & {*str(request)}
    await request.accept()
    assert await deciding is None
    deciding = asyncio.create_task(found.decide("POST", "/a", b"\xff\x00"))
    request = await found.question(2)
    assert base64.b64decode(request.tool_args["body_base64"]) == b"\xff\x00"
    await request.reject("not now")
    refused = await deciding
    assert refused is not None
    assert str(refused) == "POST api.example/a was refused: not now. Do not retry."


async def test_a_permission_covers_the_same_request_only(world: Callable[..., World]) -> None:
    found = world(f"ask POST {HOST}/**")
    deciding = asyncio.create_task(found.decide("POST", "/a", b"1"))
    await (await found.question()).accept("call")
    assert await deciding is None
    assert await found.decide("POST", "/a", b"1") is None
    deciding = asyncio.create_task(found.decide("POST", "/a", b"2"))
    await (await found.question(2)).reject()
    assert await deciding is not None


async def test_a_rule_can_answer_a_line_that_asks_but_not_a_secret_that_asks(world: Callable[..., World]) -> None:
    found = world(f"ask PUT {HOST}/**", rules=RULES)
    assert await found.decide("PUT", "/a") is None
    deciding = asyncio.create_task(found.decide("PUT", "/a", ask=True))
    await (await found.question()).accept()
    assert await deciding is None


@pytest.mark.parametrize("end", ["large", "withdrawn", "closed", "nobody"])
async def test_a_question_that_cannot_be_answered_refuses(world: Callable[..., World], end: str) -> None:
    found = world(f"ask POST {HOST}/**", closed=end == "closed")
    if end == "nobody":
        found.broker.ask = None
    deciding = asyncio.create_task(found.decide("POST", "/a", b"x" * (MOST_BODY + 1) if end == "large" else b"x"))
    if end == "withdrawn":
        await found.question()
        found.judge.withdraw()
    refused = await deciding
    assert refused is not None
    assert refused.status == 403
    assert not found.broker.pending


async def test_a_client_that_hangs_up_withdraws_its_question(world: Callable[..., World]) -> None:
    found = world(f"ask POST {HOST}/**")
    deciding = asyncio.create_task(found.decide("POST", "/a"))
    await found.question()
    found.other.close()
    with pytest.raises(ConnectionAbortedError, match="hung up"):
        await deciding
    await asyncio.sleep(0)
    assert not found.broker.pending


@pytest.fixture
async def many() -> AsyncIterator[list[asyncio.Task[Any]]]:
    tasks: list[asyncio.Task[Any]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_questions_are_limited(world: Callable[..., World], many: list[asyncio.Task[Any]]) -> None:
    found = world(f"ask POST {HOST}/**")
    many += [asyncio.create_task(found.decide("POST", f"/{number}")) for number in range(400)]
    await found.question(MOST_QUESTIONS)
    async with asyncio.timeout(10):
        while sum(task.done() for task in many) < 400 - MOST_QUESTIONS:
            await asyncio.sleep(0.001)
    assert len(found.asked) == MOST_QUESTIONS
    refused = next(task.result() for task in many if task.done())
    assert "already wait for approval" in str(refused)


async def test_an_answer_does_not_outlast_the_lines(world: Callable[..., World]) -> None:
    found = world(f"ask POST {HOST}/**")
    deciding = asyncio.create_task(found.decide("POST", "/a"))
    request = await found.question()
    await found.live.change(http=[f"GET {HOST}/**"], remove=[f"ask POST {HOST}/**"])
    await request.accept()
    refused = await deciding
    assert refused is not None
    assert "the rules have changed" in str(refused)


def test_every_host_cannot_be_combined_with_lines() -> None:
    for pattern in ("*", "*:8443"):
        with pytest.raises(InvalidInputError, match="by their addresses"):
            check_open_hosts(["a.example", pattern])


async def test_every_host_cannot_be_added_to_a_running_session_with_lines() -> None:
    policy = Network(allow=(HOST,), http=(f"GET {HOST}/**",))
    live = LiveNetwork.of(policy)
    denials: list[Denial] = []
    RequestJudge(live, (), None, on_denied=denials.append)
    with pytest.raises(InvalidInputError, match="by their addresses"):
        await live.change(allow=["*"])
    assert await live.change(allow=["b.example"]) == 0
