"""What a turnkey says to its host, which a server may control, and connections that the host hands over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from typing import Any

import pytest

from cellblock.walls.egress.judge import MOST_BODY, Handover, RequestJudge
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.names import parse_authority
from cellblock.walls.egress.rules import Denial
from cellblock.walls.keys import turnkey_link
from cellblock.walls.keys.authority import authority_certificate
from cellblock.walls.keys.session_keys import SessionKeys
from cellblock.walls.keys.template_process import Template
from cellblock.walls.keys.tls_end import TlsEnd
from cellblock.walls.keys.turnkey_link import TurnkeyLink
from cellblock.walls.sandbox.policy import Network

from .test_judged import Person
from .test_opened import LIMITS, rest
from .tls_servers import TlsServer


class Hostile:
    """The host's side, and the socket of its turnkey, which a server has taken over."""

    def __init__(self, *lines: str) -> None:
        self.keys = SessionKeys()
        self.person = Person()
        denials: list[Denial] = []
        self.judge = RequestJudge(LiveNetwork.of(Network(http=lines)), (), self.person, on_denied=denials.append)

    async def __aenter__(self) -> Hostile:
        control, self.turnkey = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        turnkey = TurnkeyLink(["api.test:443"], (), {}, self.keys._note)
        turnkey.attach(control)
        self.keys._turnkeys.append(turnkey)
        self.sockets = [*socket.socketpair(), *socket.socketpair()]

        async def redial() -> socket.socket:
            return self.sockets[2].dup()

        ends = self.sockets[0], self.sockets[2]
        serving = self.keys.serve(Handover(parse_authority("api.test:443"), *ends, b"", self.judge, True, redial))
        self.serving = asyncio.create_task(serving)
        assert (await self.heard())["judged"] is True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
        self.keys.stop()
        for one in (*self.sockets, self.turnkey):
            one.close()

    async def heard(self) -> dict[str, Any]:
        def receive() -> bytes:
            data, descriptors, _, _ = socket.recv_fds(self.turnkey, 200_000, 2)
            self.given = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            self.sockets += self.given
            return data

        self.turnkey.settimeout(10)
        return json.loads(await asyncio.to_thread(receive))  # type: ignore[no-any-return]

    async def wanted(self) -> socket.socket:
        """Return the connection for the body that the host wants to see."""
        assert await self.heard() == {"id": 1, "wanted": True}
        return self.given[0]

    def say(self, **said: Any) -> None:
        self.turnkey.send(json.dumps({"id": 1, **said}).encode())


ASK = {"method": "POST", "url": "/a", "secrets": []}


async def test_a_turnkey_that_confirms_no_change_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnkey_link, "_CHANGE_SECONDS", 0.1)
    async with Hostile("POST api.test/a") as world:
        async with asyncio.timeout(60):
            await world.keys._turnkeys[-1].change([])
        assert not world.keys._turnkeys[-1].alive


async def test_a_turnkey_that_breaks_the_rules_loses_its_session_only() -> None:
    cases: list[list[dict[str, Any]]] = [
        [{**ASK, "method": 3}],
        [{**ASK, "url": None}],
        [{**ASK, "secrets": ["OTHER"]}],
        [{**ASK, "secrets": "abc"}],
        [{"method": "POST"}],
        [{"wanted": True}],
        [ASK, ASK],
    ]
    for said in cases:
        async with Hostile("ask POST api.test/a") as world:
            for one in said:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    await asyncio.to_thread(world.say, **one)
                await asyncio.sleep(0)
            with pytest.raises(ConnectionAbortedError, match="turnkey has ended"):
                await asyncio.wait_for(world.serving, 10)
            assert not world.person.asked


async def test_a_body_without_end_is_not_received() -> None:
    async with Hostile("ask POST api.test/a") as world:
        world.say(**ASK)
        way = await world.wanted()
        way.settimeout(10)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await asyncio.to_thread(way.sendall, b"x" * (2 * MOST_BODY))
        with pytest.raises(ConnectionAbortedError, match="turnkey has ended"):
            await asyncio.wait_for(world.serving, 10)
        assert not world.person.asked


async def test_the_host_decides_and_dials_again_after_a_question() -> None:
    async with Hostile("ask POST api.test/a") as world:
        world.say(**ASK)
        with await world.wanted() as way:
            way.sendall(b"body")
        assert await world.heard() == {"id": 1, "refused": None, "fresh": True}
        assert world.person.asked[0]["body"] == "body"
        world.say(method="GET", url="/a", secrets=[])
        answer = await world.heard()
        assert answer["refused"][0] == 403


@pytest.mark.slow
async def test_the_longest_url_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    with TlsServer(host="api.test") as server:
        await judge_longest(server, monkeypatch)


async def judge_longest(server: TlsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", server.roots)
    at = parse_authority(f"api.test:{server.port}")
    denials: list[Denial] = []
    judge = RequestJudge(LiveNetwork.of(Network(http=(f"GET {at}/a",))), (), Person(), on_denied=denials.append)
    keys = SessionKeys()
    ours, theirs = socket.socketpair()
    upstream = socket.create_connection(("127.0.0.1", server.port))
    for one in (ours, theirs, upstream):
        one.setblocking(False)

    async def redial() -> socket.socket:
        raise AssertionError

    serving = asyncio.create_task(keys.serve(Handover(at, theirs, upstream, b"", judge, True, redial)))
    end = TlsEnd(ours, ssl.create_default_context(cadata=authority_certificate(keys._seed).decode()), hostname="api.test")
    try:
        async with asyncio.timeout(60):
            await end.handshake()
            # In JSON, each quote is two bytes. The head may exceed the limit by a part of the last read.
            url = "/" + '"' * (LIMITS.header_bytes + 1200)
            await end.send(f"GET {url} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
            assert b"the URL has more than 8,192 characters" in await rest(end)
            await serving
            assert keys._turnkeys[-1].alive
    finally:
        serving.cancel()
        keys.stop()
        for one in (ours, theirs, upstream):
            one.close()
        Template.current().end()
    assert not server.seen
    assert len(denials) == 1
