"""What the proxy does for those who may: three protocols, both directions, half-closes, and ends."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest

from cellblock.errors import InvalidInputError, StateError
from cellblock.walls.egress.gate import EgressLimits
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.rules import Denial, Rules
from cellblock.walls.proxy.proxy import EgressProxy
from processes import eventually

from .conftest import Starter, listener, to_web, tunnel


def get(port: int, host: str = "web.test", path: str = "/", extra: str = "") -> bytes:
    return f"GET http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n{extra}\r\n".encode()


async def test_connect_with_early_data(start: Starter) -> None:
    port = await start.echo()
    running = await to_web(start, port)
    reader, writer = await tunnel(running, port, early=b"early")
    assert await reader.readexactly(5) == b"early"
    writer.close()
    assert (running.lookups, running.dialled, running.denials) == (["web.test"], [f"127.0.0.1:{port}"], [])


async def test_socks_with_early_data(start: Starter) -> None:
    port = await start.echo()
    running = await to_web(start, port)
    reader, writer = await running.connect()
    # All in one piece, as impatient clients do, and then byte by byte.
    request = b"\x05\x01\x00\x03\x08web.test" + port.to_bytes(2, "big")
    writer.write(b"\x05\x02\x00\x02" + request + b"early")
    assert await reader.readexactly(12) == b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6)
    assert await reader.readexactly(5) == b"early"
    writer.close()
    reader, writer = await running.connect()
    for byte in b"\x05\x01\x00" + request:
        writer.write(bytes([byte]))
        await writer.drain()
    assert await reader.readexactly(12) == b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6)
    writer.close()


async def test_socks_addresses(start: Starter) -> None:
    port = await start.echo()
    running = await to_web(start, port)
    number = port.to_bytes(2, "big")
    assert await running.socks_code(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + number) == 0
    mapped = socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")
    assert await running.socks_code(b"\x05\x01\x00\x04" + mapped + number) == 0
    assert await running.socks_name(b"127.0.0.1", port) == 0
    assert await running.socks_name(b"2130706433", port) == 0
    assert running.dialled == [f"127.0.0.1:{port}"] * 4


async def test_socks_refuses_what_it_does_not_offer(start: Starter) -> None:
    running = await start.proxy("*")
    assert await running.socks_code(b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50") == 7  # BIND
    assert await running.socks_code(b"\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50") == 7  # UDP
    assert await running.socks_code(b"\x05\x01\x00\x05\x7f\x00\x00\x01\x00\x50") == 8
    assert await running.socks_code(b"\x04\x01\x00\x01\x7f\x00\x00\x01\x00\x50") == 1
    assert await running.ask(b"\x05\x01\x02") == b"\x05\xff"  # only with a password
    assert (await running.ask(b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00")).startswith(b"HTTP/1.1 400 ")  # SOCKS4
    assert running.denials == []


async def test_socks_port_zero(start: Starter) -> None:
    running = await start.proxy("*")
    assert await running.socks_code(b"\x05\x01\x00\x01\x01\x01\x01\x01\x00\x00") == 2
    [denial] = running.denials
    assert (denial.host, denial.reason) == ("1.1.1.1", "the port is not a number from 1 to 65535")


@pytest.mark.slow
def test_the_package_does_not_load_the_parsers() -> None:
    """Sessions that never use the network do not pay for it."""
    program = "import sys, cellblock.walls.proxy.proxy; print({'h11', 'idna'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"set()\n"


async def test_plain_http_is_written_anew(start: Starter) -> None:
    port, heard = await start.http(
        b"HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nConnection: X-Secret, keep-alive\r\nX-Secret: 1\r\n"
        b"Keep-Alive: 9\r\nUpgrade: h2c\r\nX-Kept: 2\r\n\r\nhello"
    )
    running = await to_web(start, port)
    request = (
        f"GET HTTP://WEB.test.:{port}?q=%20 HTTP/1.1\r\nhOst: web.TEST:{port}\r\nProxy-Authorization: Basic eDp5\r\n"
        "Proxy-Connection: keep-alive\r\nConnection: x-hop, host, content-length\r\nX-Hop: 1\r\nTE: trailers\r\n"
        "Upgrade: websocket\r\nX-Kept:  one \r\nx-kept: two\r\n\r\n"
    )
    reader, writer = await running.connect()
    writer.write(request.encode())
    answer = await reader.readuntil(b"hello")
    assert answer == b"HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nX-Kept: 2\r\n\r\nhello"
    writer.close()
    expected = f"GET /?q=%20 HTTP/1.1\r\nHost: web.test:{port}\r\nX-Kept: one\r\nx-kept: two\r\nConnection: close\r\n\r\n"
    assert heard == [expected.encode()]


async def test_kept_alive(start: Starter) -> None:
    port, heard = await start.http()
    running = await to_web(start, port)
    reader, writer = await running.connect()
    writer.write(get(port) * 2)  # pipelined
    for _ in range(2):
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.write(get(port))
    await reader.readuntil(b"hello")
    writer.close()
    assert len(heard) == 3
    assert running.lookups == ["web.test"] * 3


@pytest.mark.parametrize(
    ("answer", "received"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"5\r\nhello\r\n0\r\n\r\n"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!", b"!"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n!\r\n0\r\n\r\n",
            b"1\r\n!\r\n0\r\n\r\n",
        ),
    ],
    ids=["chunked", "until close", "no body", "early hints", "both framings"],
)
async def test_response_bodies(start: Starter, answer: bytes, received: bytes) -> None:
    port, _ = await start.http(answer)
    running = await to_web(start, port)
    got = await running.ask(get(port, extra="Connection: close\r\n"))
    assert got.endswith(b"\r\n\r\n" + received)
    assert got.lower().count(b"content-length") + got.lower().count(b"transfer-encoding") <= 1


async def test_http_1_0_client(start: Starter) -> None:
    port, heard = await start.http(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    running = await to_web(start, port)
    got = await running.ask(f"GET http://web.test:{port}/ HTTP/1.0\r\n\r\n".encode())
    assert got.endswith(b"\r\n\r\nhello")
    assert b"chunked" not in got
    assert f"Host: web.test:{port}\r\n".encode() in heard[0]


async def test_request_bodies_both_ways_at_once(start: Starter) -> None:
    """A body larger than any buffer goes up while its echo comes down."""

    async def echoing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
            if data.endswith(b"0\r\n\r\n"):
                return

    port = await start.server(echoing)
    running = await to_web(start, port)
    reader, writer = await running.connect()
    body = os.urandom(4_000_000)
    writer.write(f"POST http://web.test:{port}/ HTTP/1.1\r\nHost: web.test:{port}\r\n".encode())
    writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    await reader.readuntil(b"\r\n\r\n")
    got = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        got += await reader.readexactly(size)
        await reader.readexactly(2)
    assert got == body
    writer.close()


async def test_early_answer_ends_the_upload(start: Starter) -> None:
    port, _ = await start.http(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    running = await to_web(start, port)
    reader, writer = await running.connect()
    writer.write(f"PUT http://web.test:{port}/ HTTP/1.1\r\nHost: web.test:{port}\r\nContent-Length: 99\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 Too Large\r\n")
    assert await reader.read() == b""  # the rest of the body cannot be taken for a request
    writer.close()


async def test_continue(start: Starter) -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Expect: 100-continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + await reader.readexactly(4))
        await writer.drain()

    port = await start.server(careful)
    running = await to_web(start, port)
    reader, writer = await running.connect()
    writer.write(f"POST http://web.test:{port}/ HTTP/1.1\r\nHost: web.test:{port}\r\n".encode())
    writer.write(b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    writer.write(b"body")
    assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200 OK")
    writer.close()


async def test_unusable_responses(start: Starter) -> None:
    for answer in (b"", b"nonsense\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"):  # an upgrade nobody asked for
        port, _ = await start.http(answer)
        running = await to_web(start, port)
        assert (await running.ask(get(port))).startswith(b"HTTP/1.1 502 ")


async def test_a_response_cut_short_looks_cut_short(start: Starter) -> None:
    port, _ = await start.http(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
    running = await to_web(start, port)
    reader, writer = await running.connect()
    writer.write(f"GET http://web.test:{port}/ HTTP/1.0\r\n\r\n".encode())
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_what_cannot_be_reached(start: Starter) -> None:
    with listener() as unused:
        port = unused.getsockname()[1]
    running = await to_web(start, port)
    answer = await running.ask(get(port))
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert answer.endswith(f"cellblock: web.test:{port} could not be reached: Connection refused\n".encode())
    assert await running.socks_name(b"web.test", port) == 5
    nowhere = await start.proxy("nowhere.test", names={})
    answer = await nowhere.ask(b"CONNECT nowhere.test:443 HTTP/1.1\r\nHost: nowhere.test:443\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"nowhere.test could not be resolved: " in answer
    assert await nowhere.socks_name(b"nowhere.test", 443) == 4
    assert not nowhere.denials
    assert not running.denials


async def test_close_ends_everything(start: Starter) -> None:
    port = await start.echo()
    running = await to_web(start, port)
    tunnels = [await tunnel(running, port) for _ in range(3)]
    idle = await running.connect()
    half = await running.connect()
    half[1].write(b"GET http://web.te")
    await eventually(lambda: running.connections == 5)
    await running.proxy.close()
    assert running.connections == 0
    for reader, writer in [*tunnels, idle, half]:
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await running.connect()
    await running.proxy.close()
    with pytest.raises(StateError):
        await running.proxy.start()


async def test_close_during_a_lookup_and_an_exchange(start: Starter) -> None:
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> Sequence[str]:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    port = await start.server(silent)
    running = await start.proxy("slow.test", f"127.0.0.1:{port}", resolve=slow)
    _, looking_up = await running.connect()
    looking_up.write(b"CONNECT slow.test:443 HTTP/1.1\r\nHost: slow.test:443\r\n\r\n")
    _, exchanging = await running.connect()
    exchanging.write(get(port, "127.0.0.1"))
    await asked.wait()
    await eventually(lambda: running.dialled)
    await running.proxy.close()
    assert cancelled.is_set()
    looking_up.close()
    exchanging.close()


async def test_closing_cuts_few_clients_off_in_one_turn(start: Starter) -> None:
    running = await start.proxy()
    clients = [await running.connect() for _ in range(60)]
    await eventually(lambda: running.connections == 60)
    closing = asyncio.create_task(running.proxy.close())
    seen = [60]
    while not closing.done():
        await asyncio.sleep(0)
        seen.append(running.connections)
    assert seen[-1] == 0
    assert max(before - after for before, after in pairwise(seen)) <= 16
    for _, writer in clients:
        writer.close()


async def test_a_client_that_comes_while_the_proxy_closes_is_closed_with_it() -> None:
    made = listener()
    proxy = EgressProxy(made, LiveNetwork(Rules()), on_denied=lambda _: None)
    with socket.create_connection(made.getsockname()) as client:
        await proxy.start()
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the client is accepted, and nothing has served it yet
        await proxy.close()
        client.settimeout(60)
        assert client.recv(1) == b""


async def test_a_proxy_needs_a_listening_socket() -> None:
    def ignore(_: Denial) -> None: ...

    for made in (socket.socket(), socket.socket(type=socket.SOCK_DGRAM)):
        with made, pytest.raises(InvalidInputError, match="listening stream socket"):
            EgressProxy(made, LiveNetwork(Rules()), on_denied=ignore)
    with listener() as made:
        with pytest.raises(InvalidInputError, match=r"EgressLimits\.connections"):
            EgressLimits(connections=0)
        proxy = EgressProxy(made, LiveNetwork(Rules()), on_denied=ignore)
        await proxy.start()
        with pytest.raises(StateError):
            await proxy.start()
        await proxy.close()
