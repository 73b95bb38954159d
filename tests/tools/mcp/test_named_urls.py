"""URLs that servers name: what is refused before and at the connection, and limits."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from cellblock.tools.mcp.named_urls import LoginError, NamedUrls


async def test_servers_elsewhere_name_no_loopback_addresses() -> None:
    urls = NamedUrls("https://mcp.example/")
    with pytest.raises(LoginError, match=r"localhost is refused: it has the address .*, which is loopback"):
        await urls.connect_tcp("localhost", 1)
    inside = ("https://127.0.0.1/", "https://[::1]/", "https://0x7f.1/", "https://169.254.169.254/latest")
    for url in (*inside, "http://localhost/", "file:///etc/passwd"):
        with pytest.raises(LoginError):
            urls.check(url)
    urls.check("https://as.example/")
    NamedUrls("http://127.0.0.1:1/").check("http://localhost:2/")


async def test_bodies_have_a_limit_and_redirects_are_not_followed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        if target.startswith(b"/big"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 1_000_000)
        else:
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /big\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        urls = NamedUrls(f"{url}/mcp")
        with pytest.raises(LoginError, match=f"{url}/big sent more than"):
            await urls.send(httpx2.Request("GET", f"{url}/big?secret"))
        assert (await urls.send(httpx2.Request("GET", f"{url}/elsewhere"))).status_code == 302
    with pytest.raises(LoginError, match=f"{url}/mcp cannot be reached"):
        await urls.send(httpx2.Request("GET", f"{url}/mcp"))
