"""The heads of responses, as they come in pieces, and the connections that bring them."""

from __future__ import annotations

import asyncio
import ssl

import httpcore2
import httpx2
import pytest

from cellblock.tools.mcp.paced import Heads, PacedTransport
from suite import first_quick

INTERIM = b"HTTP/1.1 102 \r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"


def test_a_body_may_have_any_size() -> None:
    heads = Heads()
    for _ in range(3):
        heads.asked()
        heads.take(INTERIM * 3 + FINAL[:10])
        heads.take(FINAL[10:] + b"x" * 100_000)
        heads.take(b"\n" * 100_000)


@pytest.mark.parametrize("end", first_quick([b"\r\n", b"\n"]))
@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 250, "more than 200 headers"),
        (b"HTTP/1.1 200 OK\r\na: " + b"x" * 17_000, "16384 bytes of them"),
        (INTERIM + b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 250, "more than 200 headers"),
        (INTERIM * 25, "more than 20 interim responses"),
    ],
)
def test_a_head_has_limits(head: bytes, said: str, end: bytes) -> None:
    head = head.replace(b"\r\n", end)
    for pieces in ([head, end], [head[begin : begin + 1] for begin in range(len(head))]):
        with pytest.raises(httpcore2.RemoteProtocolError, match=said):
            _take(pieces)


def _take(pieces: list[bytes]) -> None:
    heads = Heads()
    for piece in pieces:
        heads.take(piece)


async def get(url: str) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=PacedTransport(url, ssl.create_default_context())) as client:
        return await client.get(url)


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({}, b"GET /path HTTP/1.1"),
        ({"http_proxy": "127.0.0.1:{port}"}, b"GET http://localhost:{port}/path HTTP/1.1"),
        ({"all_proxy": "http://127.0.0.1:{port}"}, b"GET http://localhost:{port}/path HTTP/1.1"),
        ({"http_proxy": "127.0.0.1:1", "no_proxy": "localhost"}, b"GET /path HTTP/1.1"),
    ],
    ids=["none", "for its scheme", "for all", "not for this host"],
)
async def test_the_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], line: bytes
) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(port=port))
        assert (await get(f"http://localhost:{port}/path")).text == "hi"
    assert heads[0].startswith(line.replace(b"{port}", b"%d" % port))


@pytest.mark.parametrize("said", [b"", b"what?\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"])
async def test_errors_are_those_of_the_library_above(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(httpx2.RemoteProtocolError):
            await get(f"http://127.0.0.1:{port}/")
    with pytest.raises(httpx2.ConnectError):
        await get(f"http://127.0.0.1:{port}/")
