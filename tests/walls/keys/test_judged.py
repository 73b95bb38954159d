"""Requests of opened connections that the host decides about: only what it allowed reaches the server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from cellblock import Secret
from cellblock.walls.egress.judge import MOST_BODY, JudgedRequest, RequestJudge
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.names import parse_authority
from cellblock.walls.egress.rules import Denial, RefusedError
from cellblock.walls.keys.bindings import Use, bind, described
from cellblock.walls.keys.fill import MOST_REPLACED
from cellblock.walls.sandbox.policy import Network

from . import test_opened
from .test_opened import PLACEHOLDER, SEED, VALUE
from .tls_servers import TlsServer


class Person:
    """Rules without a rule, and a person who accepts everything."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: str | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def authorities(self) -> list[str]:
        return []

    def by_rule(self, host: str, method: str, path: str) -> None:
        return None

    async def decide(self, arguments: dict[str, Any], *, by_person: bool) -> str | None:
        assert by_person
        self.asked.append(arguments)
        self.meanwhile()
        return self.answer


class World(test_opened.World):
    """A client with an opened connection to a server, whose requests are judged by lines."""

    def __init__(self, server: TlsServer, *lines: str) -> None:
        super().__init__(server)
        self.secrets = []
        self.asks = self.say
        self.person = Person()
        self.denials: list[Denial] = []
        self.judge = RequestJudge(
            LiveNetwork.of(Network(http=tuple(line.replace("API", self.at) for line in lines))),
            (),
            self.person,
            on_denied=self.denials.append,
        )
        self.said: dict[str, Any] = {}
        self.fresh = 0

    async def say(self, said: dict[str, Any] | None) -> tuple[dict[str, Any], socket.socket | None]:
        """Answer as the host."""
        if said is None:
            return await self.decided(await self.reading)
        self.said = said
        return await self.decided(None)

    async def decided(self, body: bytes | None) -> tuple[dict[str, Any], socket.socket | None]:
        class WantedError(Exception):
            pass

        async def read() -> bytes:
            if body is None:
                raise WantedError
            return body

        names = tuple(self.said["secrets"])
        request = JudgedRequest(parse_authority(self.at), self.said["method"], self.said["url"], secrets=names)
        try:
            await self.judge.decide(request, self.ends[1], read, ask=bool(names))
        except WantedError:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            self.reading = asyncio.create_task(asyncio.to_thread(received, ours))
            return {"wanted": True}, theirs
        except RefusedError as error:
            return {"refused": [error.status, str(error)]}, None
        if body is None:
            return {"refused": None}, None
        self.fresh += 1
        return {"refused": None}, self.dial()

    def request(self, first: str, *headers: str, close: bool = True) -> bytes:
        lines = [f"{first} HTTP/1.1", f"Host: {self.at}", *(["Connection: close"] if close else []), *headers]
        return "\r\n".join([*lines, "", ""]).encode()


def received(connection: socket.socket) -> bytes:
    """Return all that is sent on a connection, and close it."""
    with connection, connection.makefile("rb") as file:
        return file.read()


async def test_only_an_allowed_request_reaches_the_server(server: TlsServer) -> None:
    world = World(server, "GET API/repos/**")
    assert (await world.ask(world.request("GET /repos/a"))).startswith(b"HTTP/1.1 200 ")
    answer = await world.ask(world.request("POST /repos/a", "Content-Length: 0"))
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain")
    assert b"allowed there: GET /repos/**" in answer
    assert b"\r\nX-Should-Retry: false\r\n" in answer
    answer = await world.ask(world.request("POST /", "Accept: application/json, */*"))
    said = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert said["error"]["message"] == said["message"]
    assert "is not allowed" in said["message"]
    assert len(server.seen) == 1
    assert [record["decision"] for record in world.log] == ["allowed", "refused", "refused"]


async def test_a_request_behind_an_allowed_one_is_judged_itself(server: TlsServer) -> None:
    world = World(server, "GET API/a")
    first = world.request("GET /a", close=False)
    answer = await world.ask(first + world.request("DELETE /b"))
    assert b"HTTP/1.1 403 " in answer
    assert [line.split()[:2] for line in server.seen] == [[b"GET", b"/a"]]


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_request_inside_a_body_is_no_request(server: TlsServer) -> None:
    world = World(server, "GET API/a")
    body = world.request("DELETE /b")
    answer = await world.ask(world.request("GET /a", f"Content-Length: {len(body)}", close=False) + body)
    assert b"HTTP/1.1 403 " not in answer
    assert (server.bodies, len(server.seen)) == ([body], 1)


PATHS = [
    "/a/../b",
    "/a/%2e%2e/b",
    "/a/..%2fb",
    "/a/%2e%2e%2fb",
    "/a%2f..%2f..%2fb",
    "/a/..%5cb",
    "/a\\..\\b",
    "//b",
    "/a/..;/b",
]


async def test_no_spelling_of_a_path_passes_a_line(server: TlsServer) -> None:
    world = World(server, "GET API/a/**")
    for path in [*PATHS, "/a/%252e%252e/b", "/a%00/../b", "/a/%c0%ae%c0%ae/b", "/a/%zz"]:
        answer = await world.ask(world.request(f"GET {path}"))
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 ")), path
        assert not server.seen


OVERRIDES = ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X_HTTP_Method_Override", "X-Original-URL"]


async def test_no_header_replaces_the_method_or_the_path(server: TlsServer) -> None:
    world = World(server, "POST API/a")
    for name in [*OVERRIDES, "X-Rewrite-URL"]:
        answer = await world.ask(world.request("POST /a", f"{name}: DELETE", "Content-Length: 0"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert name.lower().encode() not in server.seen[-1].lower()
    answer = await world.ask(world.request("POST /a?_method=DELETE", "Content-Length: 0"))
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("coding", ["Content-Length: 300000", "Transfer-Encoding: chunked"])
async def test_the_server_gets_exactly_the_body_that_was_shown(server: TlsServer, coding: str) -> None:
    world = World(server, "ask POST API/a")
    body = b"0123456789" * 30_000
    sent = body if coding.startswith("Content") else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    seen = bytearray()
    if coding.startswith("Transfer"):
        server.answer = lambda head, _body: seen.extend(head) or b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"  # type: ignore[func-returns-value]
    answer = await world.ask(world.request("POST /a", coding, "Expect: 100-continue") + sent)
    assert b"HTTP/1.1 200 " in answer
    assert world.person.asked[0]["body"].encode() == body
    assert world.fresh == 1
    if coding.startswith("Content"):
        assert server.bodies == [body]
        assert b"expect" not in server.seen[0].lower()


async def test_a_body_that_is_too_large_to_show_is_refused(server: TlsServer) -> None:
    world = World(server, "ask POST API/a")
    answer = await world.ask(world.request("POST /a", f"Content-Length: {MOST_BODY + 1}") + b"x" * (MOST_BODY + 1))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"more than 4 MiB" in answer
    assert not world.person.asked
    assert not server.seen


async def test_a_body_that_was_read_for_signing_is_refused_if_it_is_too_large_to_show(server: TlsServer) -> None:
    """The host ends a turnkey that sends it more than this."""
    world = World(server)
    secret = described(bind("AWS", Secret.aws("dev", hosts=[world.at])), SEED, "ID:KEY")
    world.secrets = [secret | {"former": [], "removed": False}]
    scope = f"Credential={secret['placeholder']}/20261130/eu-west-1/execute-api/aws4_request"
    signature = f"Authorization: AWS4-HMAC-SHA256 {scope}, SignedHeaders=host;x-amz-date, Signature={'0' * 64}"
    headers = ("X-Amz-Date: 20261130T120000Z", signature, f"Content-Length: {2 * MOST_BODY}")
    answer = await world.ask(world.request("POST /a", *headers) + b"x" * (2 * MOST_BODY))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"more than 4 MiB" in answer
    assert len(await world.reading) == MOST_BODY + 1
    assert not server.seen


async def test_a_rejected_request_does_not_reach_the_server(server: TlsServer) -> None:
    world = World(server, "ask POST API/a")
    world.person.answer = "rejected"
    answer = await world.ask(world.request("POST /a", "Content-Length: 4") + b"body")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert not server.seen


def with_secret(server: TlsServer, **changes: Any) -> World:
    """Return a world with a secret for bodies and the header Authorization, whose uses a person must allow."""
    world = World(server)
    use = asdict(Use((world.at,), header=("Authorization: Bearer {}",), body=True))
    secret = {"name": "KEY", "placeholder": PLACEHOLDER, "value": VALUE, "uses": [use], "former": [], "removed": False}
    world.secrets = [secret]

    def change() -> None:
        world.secrets = [secret | changes]

    world.person.meanwhile = change
    return world


async def test_a_person_sees_the_placeholder_and_the_server_gets_the_value(server: TlsServer) -> None:
    world = with_secret(server)
    body = json.dumps({"key": PLACEHOLDER})
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    answer = await world.ask(world.request("POST /a", *headers) + body.encode())
    assert answer.startswith(b"HTTP/1.1 200 ")
    (asked,) = world.person.asked
    assert (asked["body"], asked["secrets"]) == (body, ["KEY"])
    assert json.loads(server.bodies[0]) == {"key": VALUE}
    assert world.log[0]["secrets"] == ["KEY"]


async def test_a_question_about_a_large_body_does_not_insert_into_it(server: TlsServer) -> None:
    world = with_secret(server)
    body = json.dumps({"key": PLACEHOLDER, "more": "x" * MOST_REPLACED}).encode()
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}", f"Authorization: Bearer {PLACEHOLDER}")
    assert (await world.ask(world.request("POST /a", *headers) + body)).startswith(b"HTTP/1.1 200 ")
    assert world.person.asked[0]["body"] == body.decode()
    assert server.bodies == [body]
    assert VALUE.encode() in server.seen[0]


async def test_the_server_gets_the_value_after_the_question(server: TlsServer) -> None:
    world = with_secret(server, value="refreshed-value")
    body = f"key={PLACEHOLDER}"
    headers = (f"Authorization: Bearer {PLACEHOLDER}", "Content-Type: application/x-www-form-urlencoded")
    answer = await world.ask(world.request("POST /a", *headers, f"Content-Length: {len(body)}") + body.encode())
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert server.bodies == [b"key=refreshed-value"]
    assert b"Bearer refreshed-value" in server.seen[0]


@pytest.mark.parametrize("in_body", [True, False])
async def test_a_secret_that_is_removed_during_the_question_is_not_sent(server: TlsServer, in_body: bool) -> None:
    world = with_secret(server, removed=True)
    body = json.dumps({"key": PLACEHOLDER if in_body else ""})
    header = () if in_body else (f"Authorization: Bearer {PLACEHOLDER}",)
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}", *header)
    answer = await world.ask(world.request("POST /a", *headers) + body.encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"the secret KEY was removed from this session" in answer
    assert world.person.asked[0]["secrets"] == ["KEY"]
    assert not server.seen
    assert (world.log[0]["decision"], world.log[0]["status"]) == ("refused", 403)


ASKS = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: y\r\n\r\nhello"
)


async def test_only_its_own_line_allows_a_websocket(server: TlsServer) -> None:
    world = World(server, "* API/**")
    for headers in (ASKS, (*ASKS, "Content-Length: 1"), ("Upgrade: h2c", "Connection: Upgrade")):
        answer = await world.ask(world.request("GET /socket", *headers, close=False))
        assert answer.startswith(b"HTTP/1.1 403 "), headers
    assert (await world.ask(world.request("WEBSOCKET /socket"))).startswith(b"HTTP/1.1 403 ")
    assert not server.seen
    server.answer = lambda _head, _body: SWITCHED
    world = World(server, "WEBSOCKET API/socket")
    async with world.connected() as end:
        await end.send(world.request("GET /socket", *ASKS, close=False))
        answer = b""
        while b"hello" not in answer:
            answer += await end.receive(1000)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"upgrade: websocket" in answer.lower()
        server.answer = lambda _head, _body: b"second"
        await end.send(b"frames\r\n\r\n")
        assert await end.receive(1000) == b"second"
    assert server.seen[-1] == b"frames"
    assert (await world.ask(world.request("GET /socket"))).startswith(b"HTTP/1.1 403 ")
