"""Attacks 23 to 30 from inside: what a session that may use the network gets from its proxy by every trick that is known.

The proxy itself is attacked in tests/walls/egress/, where what it looks up and dials is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import Host, Session
from cellblock.walls.sandbox.policy import Network, Policy
from cells import ok, value
from processes import descriptors, eventually

PROXY = """
import socket
def ask(data, end=None):
    with socket.create_connection(('127.0.0.1', 3128), 20) as it:
        it.sendall(data.encode('latin-1'))
        answered = b''
        try:
            while (end is None or end not in answered) and (piece := it.recv(65536)):
                answered += piece
        except ConnectionResetError:
            pass
    return answered
def status(answered):
    return int(answered.split()[1])
def connect(authority):
    return status(ask(f'CONNECT {authority} HTTP/1.1\\r\\nHost: {authority}\\r\\n\\r\\n', b'\\r\\n\\r\\n'))
def get(authority):
    return status(ask(f'GET http://{authority}/ HTTP/1.1\\r\\nHost: {authority}\\r\\n\\r\\n', b'\\r\\n\\r\\n'))
def socks(name, port=443):
    with socket.create_connection(('127.0.0.1', 3128), 20) as it:
        it.sendall(b'\\5\\1\\0')
        assert it.recv(2) == b'\\5\\0'
        it.sendall(b'\\5\\1\\0\\3' + bytes([len(name)]) + name + port.to_bytes(2, 'big'))
        return it.recv(10)[1]
"""
DENIED = 2
"""What SOCKS5 calls it (RFC 1928, 6): the connection is not allowed by ruleset."""


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[int]:
    """Serve on the host's loopback interface: ``/away`` leads to the metadata service, all else says hello."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if b"/away" in (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]:
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client only wanted to see whether it can connect
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture(scope="module")
async def online(native_host: Host, tmp_path_factory: pytest.TempPathFactory, server: int) -> AsyncIterator[Session]:
    """A session that may reach every public host, two names, and one port of the host's loopback interface."""
    workspace = tmp_path_factory.mktemp("online")
    allow = ("*", "localhost", "allowed.test", "*.allowed.test", f"127.0.0.1:{server}")
    policy = replace(Policy(), network=Network(allow=allow, deny=("evil.test",)))
    async with native_host.session(working_dir=workspace, images_dir=workspace, policy=policy, recovery="none") as session:
        await ok(session, PROXY)
        yield session


async def test_what_is_allowed_is_reached_from_inside(online: Session, server: int) -> None:
    assert await value(online, f"[get('127.0.0.1:{server}'), connect('127.1:{server}')]") == [200, 200]


async def test_23_no_spelling_of_an_inner_address_is_reached(online: Session) -> None:
    hosts = ["127.0.0.1", "[::1]", "0.0.0.0", "127.1", "2130706433", "0x7f.1", "169.254.169.254", "10.0.0.1"]
    hosts += ["[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::1]"]
    before = len(online.denials)
    assert await value(online, f"{{(connect(host + ':443'), get(host)) for host in {hosts}}}") == {(403, 403)}
    assert await value(online, f"{{socks(host.strip('[]').encode()) for host in {hosts}}}") == {DENIED}
    assert len(online.denials) - before == 3 * len(hosts)


async def test_24_an_allowed_name_that_leads_to_an_inner_address_is_refused(online: Session) -> None:
    before = len(online.denials)
    assert await value(online, "[connect('localhost:443'), get('localhost'), socks(b'localhost')]") == [403, 403, DENIED]
    assert {"loopback" in denial.reason for denial in online.denials[before:]} == {True}


async def test_25_every_spelling_of_a_name_has_one_decision(online: Session) -> None:
    spellings = [b"evil.test", b"EVIL.Test", b"evil.test.", "ｅｖｉｌ。test".encode(), b"evil.test\0.allowed.test"]
    spellings += [b"evil.test\r\n.allowed.test", b"fe80::1%eth0", b"::1%lo"]
    assert await value(online, f"{{socks(name) for name in {spellings}}}") == {DENIED}
    assert await value(online, "[connect(name + ':443') for name in ('evil.test', 'EVIL.test', 'evil.test.')]") == [403] * 3


async def test_26_authorities_that_confuse_are_refused(native_host: Host, workspace: Path, tmp_path: Path) -> None:
    policy = replace(Policy(), network=Network(allow=("allowed.test", "*.allowed.test")))
    async with native_host.session(working_dir=workspace, images_dir=tmp_path / "images", policy=policy) as session:
        names = [
            "evil.test:443.allowed.test",
            "allowed.test@evil.test:443",
            "notallowed.test:443",
            "allowed.test.evil.test:443",
        ]
        assert await value(session, f"{PROXY}\n[connect(name) for name in {names}]") == [403] * 4


async def test_27_an_allowed_hosts_other_ports_are_refused(online: Session, server: int) -> None:
    names = ["allowed.test:22", "allowed.test:25", "93.184.216.34:22", f"127.0.0.1:{server + 1}", f"localhost:{server + 1}"]
    assert await value(online, f"[(connect(name), get(name)) for name in {names}]") == [(403, 403)] * len(names)


async def test_28_a_second_request_on_a_connection_is_judged_as_the_first(online: Session, server: int) -> None:
    good = f"GET http://127.0.0.1:{server}/ HTTP/1.1\\r\\nHost: 127.0.0.1:{server}\\r\\n\\r\\n"
    bad = "GET http://evil.test/ HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n"
    answered = await value(online, f"ask('{good}{bad}')")
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answered.count(b"HTTP/1.1 403 Forbidden") == 1
    smuggled = f"POST http://127.0.0.1:{server}/ HTTP/1.1\\r\\nHost: 127.0.0.1:{server}\\r\\nContent-Length: 5\\r\\n"
    smuggled += f"Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n{bad}"
    answered = await value(online, f"ask('{smuggled}')")
    assert answered.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answered.count(b"HTTP/1.1") == 1


async def test_29_a_redirect_to_a_denied_host_ends_there(online: Session, server: int) -> None:
    code = f"""
import os, urllib.error, urllib.request
os.environ |= {{'no_proxy': '', 'NO_PROXY': ''}}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{'http': 'http://127.0.0.1:3128'}}))
try:
    found = opener.open('http://127.0.0.1:{server}/away').status
except urllib.error.HTTPError as error:
    found = error.code, error.url
found
"""
    assert await value(online, code) == (403, "http://169.254.169.254/")


@pytest.mark.slow
async def test_30_connections_without_end_cost_the_session_only(online: Session, cell: Session) -> None:
    """Held open, and each with the beginning of a request: more than the proxy serves at once wait, or are turned away."""
    code = """
held = []
for _ in range(3000):
    it = socket.socket()
    it.setblocking(False)
    answer = it.connect_ex(('127.0.0.1', 3128))
    held.append(it)
len(held)
"""
    before = len(descriptors())
    assert await value(online, code, timeout=60) == 3000
    assert await value(cell, "6 * 7", timeout=10) == 42
    assert len(descriptors()) - before < 400  # 256 at a time, and some that are told so
    await ok(online, "for it in held: it.close()")

    async def served() -> bool:
        return bool(await value(online, "get('evil.test') == 403", timeout=60))

    await eventually(served, timeout=30)
