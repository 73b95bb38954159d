"""What results of the MCP server say about servers of the code."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest
from mcp import Client

from cellblock.common import extras
from cellblock.host import Host
from mcp_clients import connect, run, text
from web_servers import IN_A_SESSION

NOTE = re.compile(
    r"\[cellblock\] A server listens at port 8501\. Give the user this URL, which works once, within an hour, in a browser on "
    r"this machine: http://frame\.(p8501-[0-9a-f]{16}\.localhost:(\d+))/\?(cellblock-ticket=\S+)"
)

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def client(native_host: Host) -> Connect:
    return functools.partial(connect, native_host)


async def test_the_result_that_starts_a_server_tells_the_url_of_its_page_once(client: Connect, tmp_path: Path) -> None:
    async with client(tmp_path) as connected:
        first, second = text(await run(connected, IN_A_SESSION)), text(await run(connected, "1 + 1"))
        found = NOTE.search(first)
        assert found, first
        assert second == "2"
        host, port, query = found.groups()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as browser:
            assert (await browser.get("/", headers={"Host": host})).status_code == 403  # nothing is open without the ticket
            entered = await browser.get(f"/?{query}", headers={"Host": host})
            cookie = entered.headers["Set-Cookie"].partition(";")[0]
            browser.cookies.clear()
            assert (await browser.get(f"/?{query}", headers={"Host": host})).status_code == 403
            assert (await browser.get("/", headers={"Host": host, "Cookie": cookie})).text == "page"
            assert (await browser.get("/", headers={"Host": f"localhost:{port}"})).status_code == 421
    async with httpx.AsyncClient() as browser:
        with pytest.raises(httpx.ConnectError):
            await browser.get(f"http://127.0.0.1:{port}")


@pytest.mark.slow
async def test_without_the_extra_the_result_names_it(client: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.MODULES, "serve", ("nowhere",))
    async with client(tmp_path) as connected:
        said = text(await run(connected, IN_A_SESSION))
        assert "port 8501. Its page cannot be opened: pages of servers need an extra: pip install 'cellblock[serve]'" in said


@pytest.mark.slow
async def test_few_servers_are_named(client: Connect, tmp_path: Path) -> None:
    async with client(tmp_path) as connected:
        many = "import socket; made = [socket.create_server(('127.0.0.1', 0)) for _ in range(100)]"
        assert [text(await run(connected, code)).count("A server listens") for code in (many, "1")] == [8, 0]


@pytest.mark.slow
async def test_ports_of_the_machine_are_not_named(zygote_host: Host, tmp_path: Path) -> None:
    async with connect(zygote_host, tmp_path, sandbox=False) as connected:
        assert "A server listens" not in text(await run(connected, IN_A_SESSION.replace("8501", "0")))
