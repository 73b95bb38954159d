"""Requests of opened connections: what reaches the server, what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import html
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from cellblock.walls.egress.gate import EgressLimits
from cellblock.walls.keys.authority import authority_certificate
from cellblock.walls.keys.bindings import Use
from cellblock.walls.keys.fill import MOST_REPLACED
from cellblock.walls.keys.opened import Ask, OpenedConnection, Opening
from cellblock.walls.keys.tls_end import TlsEnd
from cellblock.walls.keys.turnkey import server_settings

from .tls_servers import TlsServer, echo

SEED = b"s" * 32
VALUE = 'Real:/secret+va=lue"12345'
PLACEHOLDER = "cellblockA1b2C3d4E5f6G7h8I9j0K1l2"
OTHERS = "cellblockZ1b2C3d4E5f6G7h8I9j0K1l2"
LIMITS = EgressLimits(header_seconds=3, connect_seconds=3, idle_seconds=3)


class World:
    """A client with an opened connection to a server."""

    def __init__(self, server: TlsServer, **use: Any) -> None:
        self.server = server
        self.at = f"api.test:{server.port}"
        places = asdict(Use((self.at,)))
        self.secrets: list[dict[str, Any]] = [
            {"name": "KEY", "placeholder": PLACEHOLDER, "value": VALUE, "uses": [places | use]}
        ]
        self.secrets[0] |= {"former": [], "removed": False}
        self.log: list[dict[str, Any]] = []
        self.limits = LIMITS
        self.asks: Ask | None = None

    def opening(self, roots: str | None = None) -> Opening:
        client = ssl.create_default_context(cafile=roots or self.server.roots)
        return Opening(server_settings(SEED, {self.at}), client, self.limits, lambda: self.secrets, self.log.append)

    def dial(self) -> socket.socket:
        upstream = socket.create_connection(("127.0.0.1", self.server.port))
        upstream.setblocking(False)
        return upstream

    @contextlib.asynccontextmanager
    async def connected(self, *, sni: str = "api.test", roots: str | None = None) -> AsyncIterator[TlsEnd]:
        """Connect as a client in the sandbox."""
        self.ends = ours, theirs = socket.socketpair()
        for one in self.ends:
            one.setblocking(False)
        opened = OpenedConnection(self.opening(roots), self.at, theirs, self.dial(), b"", self.asks)
        serving = asyncio.create_task(opened.serve())
        context = ssl.create_default_context(cadata=authority_certificate(SEED).decode())
        context.check_hostname = sni == "api.test"
        end = TlsEnd(ours, context, hostname=sni)
        try:
            async with asyncio.timeout(60):
                await end.handshake()
                yield end
        finally:
            end.close()
            await serving

    async def ask(self, request: bytes, **options: Any) -> bytes:
        """Send a request, and return everything until the end of the connection."""
        async with self.connected(**options) as end:
            await end.send(request)
            return await rest(end)


async def rest(end: TlsEnd) -> bytes:
    found = b""
    with contextlib.suppress(OSError):
        while data := await end.receive(65536):
            found += data
    return found


def get(world: World, path: str = "/", *headers: str, method: str = "GET", host: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or world.at}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


BEARER = {"header": ["Authorization: Bearer {}"]}
SENT = f"Authorization: Bearer {PLACEHOLDER}"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("use", "path", "headers", "seen"),
    [
        (BEARER, "/", [SENT], f"Authorization: Bearer {VALUE}"),
        (BEARER, "/", [f"authorization: bearer {PLACEHOLDER}"], f"authorization: bearer {VALUE}"),
        ({"header": ["X-Key: {}"]}, "/", [f"X-Key: {PLACEHOLDER}"], f"X-Key: {VALUE}"),
        ({"basic": "user:{}"}, "/", [f"Authorization: {basic('me', PLACEHOLDER)}"], f"Authorization: {basic('me', VALUE)}"),
        ({"basic": "{}:"}, "/", [f"Authorization: {basic(PLACEHOLDER, '')}"], f"Authorization: {basic(VALUE, '')}"),
        ({"query": "key"}, f"/a?b=1&key={PLACEHOLDER}", [], f"GET /a?b=1&key={quote(VALUE, safe='')} HTTP/1.1"),
        ({"path": "bot{}"}, f"/bot{PLACEHOLDER}/send", [], f"GET /bot{quote(VALUE, safe=':')}/send HTTP/1.1"),
        ({**BEARER, "attach": True}, "/", [], f"Authorization: Bearer {VALUE}"),
        ({"basic": "git:{}", "attach": True}, "/", [], f"Authorization: {basic('git', VALUE)}"),
        ({**BEARER, "attach": True}, "/", ["Authorization: Bearer own"], "Authorization: Bearer own"),
    ],
)
async def test_a_secret_is_inserted_at_its_place_and_does_not_come_back(
    server: TlsServer, use: dict[str, Any], path: str, headers: list[str], seen: str
) -> None:
    world = World(server, **use)
    answer = await world.ask(get(world, path, *headers))
    assert seen in server.seen[0].decode().split("\r\n")
    assert b"200 OK" in answer
    for form in (VALUE, quote(VALUE, safe=""), quote(VALUE, safe=":"), base64.b64encode(f"git:{VALUE}".encode()).decode()):
        assert form.encode() not in answer
    (record,) = world.log
    assert (record["status"], record["path"]) == (200, path.partition("?")[0])
    assert VALUE not in json.dumps(world.log)


REFUSED: dict[str, tuple[str, str, list[str], str, int]] = {
    # name: method, path, headers, host, status
    "host": ("GET", "/", [SENT], "evil.test", 421),
    "port": ("GET", "/", [SENT], "api.test:1", 421),
    "absolute": ("GET", "https://evil.test/", [SENT], "", 400),
    "user agent": ("GET", "/", [f"User-Agent: {PLACEHOLDER}"], "", 403),
    "cookie": ("GET", "/", [f"Cookie: a={PLACEHOLDER}"], "", 403),
    "path": ("GET", f"/{PLACEHOLDER}", [], "", 403),
    "query": ("GET", f"/?a={PLACEHOLDER}", [], "", 403),
    "encoded": ("GET", "/?a=" + "".join(f"%{ord(each):02x}" for each in PLACEHOLDER), [], "", 403),
    "more": ("GET", "/", [f"Authorization: Bearer {PLACEHOLDER} x"], "", 403),
    "basic": ("GET", "/", [f"Authorization: {basic('me', PLACEHOLDER)}"], "", 403),
    "another session": ("GET", "/", [f"Authorization: Bearer {OTHERS}"], "", 403),
    "trace": ("TRACE", "/", [SENT], "", 403),
    "upgrade": ("GET", "/", [SENT, "Upgrade: websocket"], "", 403),
    "lengths": ("POST", "/", [SENT, "Content-Length: 1", "Content-Length: 2"], "", 400),
    "length and chunks": ("POST", "/", [SENT, "Content-Length: 1", "Transfer-Encoding: chunked"], "", 400),
    "coding": ("POST", "/", [SENT, "Transfer-Encoding: xchunked"], "", 501),
    "folded": ("GET", "/", [SENT, "X-A: b", " c"], "", 400),
    "return": ("GET", "/", [SENT, "X-A: b\rX-B: c"], "", 400),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_ambiguous_or_misplaced_is_refused(server: TlsServer, name: str) -> None:
    method, path, headers, host, status = REFUSED[name]
    world = World(server, **BEARER)
    answer = await world.ask(get(world, path, *headers, method=method, host=host))
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"cellblock: " in answer
    assert not server.seen


async def test_a_name_in_the_greeting_must_be_the_connections(server: TlsServer) -> None:
    world = World(server, **BEARER)
    assert (await world.ask(get(world, "/", SENT), sni="localhost")).startswith(b"HTTP/1.1 421 ")
    assert not server.seen


async def test_a_client_receives_nothing_before_a_response(server: TlsServer) -> None:
    """botocore takes a session ticket for the response to ``Expect: 100-continue``."""
    async with World(server, **BEARER).connected() as end:
        await asyncio.sleep(0.1)
        with pytest.raises(BlockingIOError):
            end._connection.recv(1)


async def test_a_placeholder_for_another_opened_host_is_refused(server: TlsServer) -> None:
    world = World(server, **BEARER)
    world.secrets[0]["uses"][0]["hosts"] = ["other.test:443", f"api.test:{server.port + 1}"]
    answer = await world.ask(get(world, "/", SENT))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"not for this host" in answer
    assert not server.seen


async def test_extensions_and_trailers_of_chunks_are_dropped_and_wrong_chunks_refused(server: TlsServer) -> None:
    world = World(server, **BEARER)
    start = get(world, "/", SENT, "Transfer-Encoding: chunked", method="POST")
    with contextlib.suppress(OSError):
        await world.ask(start + b"3;extension=1\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n")
    sent = b"".join((*server.seen, *server.bodies)).lower()
    assert VALUE.lower().encode() in sent
    assert b"extension" not in sent
    assert b"x-trailer" not in sent
    server.seen.clear()
    answer = await world.ask(start + b"xyz\r\nabc\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n"])
async def test_what_is_not_tls_reaches_no_opened_server(server: TlsServer, first: bytes) -> None:
    world = World(server, **BEARER)
    (ours, theirs), (upstream, reached) = socket.socketpair(), socket.socketpair()
    for one in (ours, theirs, upstream):
        one.setblocking(False)
    with ours, reached:
        await asyncio.get_running_loop().sock_sendall(ours, first)
        async with asyncio.timeout(30):
            await OpenedConnection(world.opening(), world.at, theirs, upstream, b"").serve()
        reached.settimeout(30)
        assert first[:6] not in reached.recv(65536)


async def test_a_slow_head_ends_the_connection(server: TlsServer) -> None:
    world = World(server, **BEARER)
    world.limits = replace(LIMITS, header_seconds=0.3)
    async with world.connected() as end:
        await end.send(b"GET / HTTP/1.1\r\nHost:")
        async with asyncio.timeout(10):
            assert (await rest(end)).startswith(b"HTTP/1.1 408 ")
    assert not server.seen


async def test_a_split_placeholder_is_not_replaced(server: TlsServer) -> None:
    world = World(server, **BEARER)
    await world.ask(get(world, "/", f"Authorization: Bearer {PLACEHOLDER[:15]} {PLACEHOLDER[15:]}"))
    assert VALUE.encode() not in server.seen[0]


async def test_the_server_needs_a_trusted_certificate_of_its_name(tmp_path: Path) -> None:
    for host, days, why in (("other.test", 30, b"Hostname mismatch"), ("api.test", -1, b"expired")):
        with TlsServer(host=host, days=days) as server:
            world = World(server, **BEARER)
            answer = await world.ask(get(world, "/", SENT))
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"X-Should-Retry: false" in answer
            assert why in answer
            assert not server.seen
    with TlsServer(host="api.test") as server, TlsServer(host="api.test") as another:
        answer = await World(server, **BEARER).ask(get(World(server), "/", SENT), roots=another.roots)
        assert b"self-signed" in answer
        assert not server.seen


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        quote(VALUE, safe=""),
        quote(VALUE, safe=":"),
        re.sub("%..", lambda code: code[0].lower(), quote(VALUE, safe="")),
        html.escape(VALUE),
        json.dumps({"key": VALUE}),
        json.dumps(VALUE).replace("=", "\\u003d"),
        json.dumps(VALUE).replace("+", "\\u002B"),
        base64.b64encode(VALUE.encode()).decode(),
        base64.b64encode(b"a:" + VALUE.encode()).decode(),
        base64.b64encode(b"ab:" + VALUE.encode() + b"!").decode(),
        base64.urlsafe_b64encode(b"abc:" + VALUE.encode()).decode(),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_an_echo_becomes_the_placeholder_in_every_form_and_across_chunks(form: str, size: int) -> None:
    def answer(_head: bytes, _body: bytes) -> bytes:
        content = f"before {form} after".encode()
        chunks = [content[start : start + size] for start in range(0, len(content), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        headers = f"Location: https://api.test/?k={form}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        return b"HTTP/1.1 302 Found\r\n" + headers + body + b"0\r\n\r\n"

    with TlsServer(answer, host="api.test") as server:
        world = World(server, **BEARER)
        answered = await world.ask(get(world, "/", SENT))
    head, _, body = answered.partition(b"\r\n\r\n")
    assert b"before " in body.replace(b"\r\n", b"") or size == 1
    for text in (answered, _unchunked(body)):
        assert form.encode() not in text
        for part in (VALUE[:12], base64.b64encode(VALUE.encode()).decode()[:16]):
            assert part.encode() not in text
    assert head.startswith(b"HTTP/1.1 302 ")


async def test_an_echo_in_a_headers_name_or_in_utf_16_becomes_the_placeholder() -> None:
    value = "token-0123456789"
    wide = [value.encode(f"utf-16-{order}") for order in ("le", "be")]
    body = b"".join(wide)
    head = f"HTTP/1.1 200 OK\r\nX-{value}: 1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with TlsServer(lambda _head, _body: head + body, host="api.test") as server:
        world = World(server, **BEARER)
        world.secrets[0] |= {"value": value}
        answer = await world.ask(get(world, "/", SENT))
    assert not [form for form in (value.encode(), *wide) if form in answer]
    assert f"X-{PLACEHOLDER}: 1\r\n".encode() in answer
    assert PLACEHOLDER.encode("utf-16-le")[:-1] in answer


def _unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return found


async def test_a_compressed_answer_to_a_secret_is_refused_and_none_is_asked_for() -> None:
    """By 403: after a 502, SDKs would repeat a request that the server has carried out."""
    content = gzip.compress(VALUE.encode())
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(content)
    with TlsServer(lambda _head, _body: head + content, host="api.test") as server:
        world = World(server, **BEARER)
        answer = await world.ask(get(world, "/", SENT, "Accept-Encoding: gzip", "Range: bytes=0-3"))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"X-Should-Retry: false" in answer
        assert b"gzip" not in server.seen[0]
        assert b"Range" not in server.seen[0]
        # Nor without a secret in the request: the server may return one of an earlier request.
        assert (await world.ask(get(world, "/", "Accept-Encoding: gzip"))).startswith(b"HTTP/1.1 403 ")


async def test_a_secret_of_an_earlier_request_does_not_come_back(server: TlsServer) -> None:
    server.answer = lambda _head, _body: echo(b"\r\n".join(server.seen), b"")
    world = World(server, **BEARER)
    await world.ask(get(world, "/", SENT))
    answer = await world.ask(get(world, "/"))
    assert VALUE.encode() in server.seen[0]
    assert VALUE.encode() not in answer
    assert PLACEHOLDER.encode() in answer


async def test_a_removed_secret_is_refused_and_stays_hidden_in_responses(server: TlsServer) -> None:
    world = World(server, **BEARER, body=True, attach=True)
    async with world.connected() as end:
        await end.send(get(world, "/before", SENT).replace(b"Connection: close\r\n", b""))
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += await end.receive(65536)
        world.secrets = [world.secrets[0] | {"removed": True}]
        await end.send(get(world, "/after", SENT))
        refused = await rest(end)
    assert refused.startswith(b"HTTP/1.1 403 ")
    assert b"the secret KEY was removed from this session" in refused
    server.answer = lambda _head, _body: echo(VALUE.encode(), b"")
    assert VALUE.encode() not in await world.ask(get(world, "/"))
    await world.ask(posted(world, FORM_BODY, FORM))
    assert server.bodies[-1] == FORM_BODY.encode()
    assert VALUE.encode() not in b"".join(server.seen[1:])


async def test_a_secret_that_is_removed_while_a_body_arrives_is_not_sent(server: TlsServer) -> None:
    world = World(server, **BEARER, body=True)
    async with world.connected() as end:
        head, _, body = posted(world, FORM_BODY, FORM, SENT).partition(b"\r\n\r\n")
        await end.send(head + b"\r\n\r\n")
        await asyncio.sleep(0.2)
        world.secrets = [world.secrets[0] | {"removed": True}]
        await end.send(body)
        assert (await rest(end)).startswith(b"HTTP/1.1 403 ")
    assert not server.seen


async def test_a_former_value_stays_hidden_in_responses(server: TlsServer) -> None:
    world = World(server, **BEARER)
    world.secrets[0] |= {"former": [VALUE], "value": "rotated-0123456789"}
    server.answer = lambda head, _body: echo(head + VALUE.encode(), b"")
    answer = await world.ask(get(world, "/", SENT))
    assert b"Bearer rotated-0123456789" in server.seen[0]
    assert VALUE.encode() not in answer
    assert b"rotated" not in answer


async def test_requests_of_one_connection_are_judged_one_by_one_and_share_the_servers(server: TlsServer) -> None:
    world = World(server, **BEARER)
    async with world.connected() as end:
        first = get(world, "/first", SENT).replace(b"Connection: close\r\n", b"")
        await end.send(first + get(world, "/second", f"X-A: {PLACEHOLDER}"))
        answer = await rest(end)
    assert [line.split()[1] for line in server.seen] == [b"/first"]
    assert b"HTTP/1.1 403 " in answer
    assert server.connections == 1
    assert [record["decision"] for record in world.log] == ["allowed", "refused"]


async def test_a_body_is_forwarded_unchanged(server: TlsServer) -> None:
    world = World(server, **BEARER)
    body = b"x" * 300_000 + PLACEHOLDER.encode()
    answer = await world.ask(get(world, "/", SENT, f"Content-Length: {len(body)}", method="POST") + body)
    assert server.bodies == [body]
    assert PLACEHOLDER.encode() in answer


JSON, FORM = "Content-Type: application/json; charset=utf-8", "Content-Type: application/x-www-form-urlencoded"
FORM_BODY, FORM_FILLED = f"a=1&key={PLACEHOLDER}", f"a=1&key={quote(VALUE, safe='')}"


def posted(world: World, body: str, *headers: str, chunked: bool = False) -> bytes:
    """Return a request with a body."""
    content = body.encode()
    if chunked:
        half = len(content) // 2
        parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (content[:half], content[half:]))
        return get(world, "/", "Transfer-Encoding: chunked", *headers, method="POST") + parts + b"0\r\nX-T: 1\r\n\r\n"
    return get(world, "/", f"Content-Length: {len(content)}", *headers, method="POST") + content


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("header", "body", "seen"),
    [
        (JSON, json.dumps({"key": PLACEHOLDER}), json.dumps({"key": VALUE})),
        ("Content-Type: application/vnd.api+json", json.dumps([PLACEHOLDER]), json.dumps([VALUE])),
        (FORM, FORM_BODY, FORM_FILLED),
    ],
)
async def test_a_secret_is_inserted_into_bodies_and_does_not_come_back(
    server: TlsServer, header: str, body: str, seen: str, chunked: bool
) -> None:
    world = World(server, body=True)
    answer = await world.ask(posted(world, body, header, chunked=chunked))
    assert server.bodies == [seen.encode()]
    assert b"200 OK" in answer
    assert PLACEHOLDER.encode() in answer
    for form in (VALUE, json.dumps(VALUE)[1:-1], quote(VALUE, safe="")):
        assert form.encode() not in answer
    assert [one["secrets"] for one in world.log] == [["KEY"]]


@pytest.mark.parametrize(
    ("use", "headers", "body"),
    [
        (BEARER, [JSON], PLACEHOLDER),
        ({"body": True}, [], PLACEHOLDER),
        ({"body": True}, ["Content-Type: text/plain"], PLACEHOLDER),
        ({"body": True}, [JSON, "Content-Encoding: gzip"], PLACEHOLDER),
        ({"body": True}, [JSON, FORM], PLACEHOLDER),
        ({"body": True}, [JSON], OTHERS),
        ({"body": True}, [JSON], PLACEHOLDER + "x" * MOST_REPLACED),
        ({"body": True}, [JSON], PLACEHOLDER[:20] + "\\u0065" + PLACEHOLDER[21:]),
    ],
)
async def test_other_bodies_are_forwarded_unchanged(
    server: TlsServer, use: dict[str, Any], headers: list[str], body: str
) -> None:
    world = World(server, **use)
    answer = await world.ask(posted(world, body, *headers))
    assert b"200 OK" in answer
    assert server.bodies == [body.encode()]
    assert [one["secrets"] for one in world.log] == [[]]


async def test_a_long_body_without_a_length_is_refused(server: TlsServer) -> None:
    world = World(server, body=True)
    answer = await world.ask(posted(world, "x" * (MOST_REPLACED + 1), JSON, chunked=True))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert not server.seen


async def test_a_client_that_waits_for_its_body_is_asked_for_it_once(server: TlsServer) -> None:
    world = World(server, body=True)
    head, _, body = posted(world, FORM_BODY, FORM, "Expect: 100-continue").partition(b"\r\n\r\n")
    async with world.connected() as end:
        await end.send(head + b"\r\n\r\n")
        assert (await end.receive(1000)).startswith(b"HTTP/1.1 100 ")
        await end.send(body)
        assert b"200 OK" in await rest(end)
    assert server.bodies == [FORM_FILLED.encode()]
    assert b"expect" not in server.seen[0].lower()


async def test_responses_that_pass_are_not_changed() -> None:
    content = gzip.compress(VALUE.encode())
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(content)
    with TlsServer(lambda _head, _body: head + content, host="api.test") as server:
        world = World(server, **BEARER, responses="pass")
        answer = await world.ask(get(world, "/", SENT, "Accept-Encoding: gzip", "Range: bytes=0-3"))
    assert answer.endswith(content)
    assert b"Range: bytes=0-3" in server.seen[0]


async def test_the_preface_of_http_2_is_told_to_use_http_1(server: TlsServer) -> None:
    answer = await World(server, **BEARER).ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert answer[9:].startswith(bytes.fromhex("000008 07")) or b"\x07" in answer
    assert answer.endswith(bytes.fromhex("0000000d"))
    assert not server.seen


async def test_a_server_that_ends_the_connection_ends_the_clients(server: TlsServer) -> None:
    server.answer = lambda _head, _body: b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    world = World(server, **BEARER)
    answer = await world.ask(get(world, "/", SENT).replace(b"Connection: close\r\n", b""))
    assert answer.endswith(b"2\r\nok\r\n0\r\n\r\n")
