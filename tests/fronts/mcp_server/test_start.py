"""`cellblock mcp` as a process: what its clients see, and what is left when they are gone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from mcp_clients import data, run, text
from processes import below, eventually

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "cellblock", "mcp", "--workspace"]
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files, in which nothing may be left."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "ws").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CELLBLOCK_MCP_WAIT", "600")  # the clients are called as those that wait for five seconds
    return tmp_path / "tmp"


class Raw:
    """A client that writes and reads lines."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, str(cwd / "ws"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def send(self, *messages: object) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")

    def receive(self, number: int) -> dict[str, Any]:
        """Return the answer to a request."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number:
                return message
        raise AssertionError("the server has left")

    def begin(self) -> None:
        self.send(HELLO)
        self.receive(1)
        self.send(READY)

    def execute(self, number: int, code: str) -> None:
        params = {"name": "execute_ipython_cell", "arguments": {"code": code}}
        self.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})


@contextmanager
def raw(*arguments: str, cwd: Path) -> Iterator[Raw]:
    client = Raw(*arguments, cwd=cwd)
    try:
        yield client
    finally:
        client.process.kill()
        client.process.wait()
        for stream in (client.process.stdin, client.process.stdout, client.process.stderr):
            if stream is not None:
                stream.close()


def left(temporary: Path) -> list[str]:
    return sorted(os.listdir(temporary))


async def gone(process: int) -> None:
    await eventually(lambda: not below(process) and not Path(f"/proc/{process}/ns").exists())


async def test_a_named_session_is_there_for_the_next_server(tmp_path: Path) -> None:
    try:
        for code, shown in (("x = 41", "(no output)"), ("x + 1", "42")):
            with raw("--session", "mine", cwd=tmp_path) as client:
                client.begin()
                client.execute(2, code)
                assert client.receive(2)["result"]["content"][0]["text"] == shown
                assert client.process.stdin is not None
                client.process.stdin.close()
                assert await asyncio.to_thread(client.process.wait, 30) == 0
    finally:
        await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "cellblock", "daemon", "stop"], check=True)


@pytest.mark.parametrize("how", ["stdin", "SIGTERM", "SIGINT"])
async def test_everything_ends_in_good_order(how: str, tmp_path: Path, temporary: Path) -> None:
    with raw(cwd=tmp_path) as client:
        client.begin()
        client.execute(2, "1 + 1")
        assert client.receive(2)["result"]["content"][0]["text"] == "2"
        client.execute(3, "open('begun', 'w').close()\nwhile True: pass")
        await eventually((tmp_path / "ws" / "begun").exists)
        started = below(client.process.pid)
        assert started
        if how == "stdin":
            assert client.process.stdin is not None
            client.process.stdin.close()
        else:
            client.process.send_signal(signal.Signals[how])
        status = await asyncio.to_thread(client.process.wait, 30)
        assert status == {"stdin": 0, "SIGTERM": 143, "SIGINT": 130}[how]
        await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
        assert left(temporary) == []


async def test_a_client_that_is_killed_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"server = subprocess.Popen({[*COMMAND, str(tmp_path / 'ws')]!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "for line in sys.argv[1:]: server.stdin.write(line.encode() + b'\\n'); server.stdin.flush()\n"
        "time.sleep(600)"
    )
    call = {"name": "execute_ipython_cell", "arguments": {"code": "open('begun', 'w').close()\nwhile True: pass"}}
    messages = [HELLO, READY, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}]
    client = subprocess.Popen([sys.executable, "-c", code, *map(json.dumps, messages)])
    try:
        await eventually((tmp_path / "ws" / "begun").exists)
        started = below(client.pid)
        assert len(started) > 2
    finally:
        client.kill()
        client.wait()
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    assert left(temporary) == []


async def test_garbage_is_survived_and_stdout_has_protocol_only(tmp_path: Path) -> None:
    with raw("--no-sandbox", cwd=tmp_path) as client:
        client.begin()
        client.send("nonsense", "{", "[]", '{"jsonrpc": "2.0", "id": 7}', "\x00" * 1000, '{"jsonrpc": "2.0", "method": 5}', "")
        client.execute(2, "import os\nos.system('echo loud; echo loud >&2')\nos.write(1, b'also loud')\n1")
        answer = client.receive(2)["result"]["content"][0]["text"]  # each line on the way was JSON
        assert "loud" in answer


async def test_two_clients_share_a_workspace_and_no_variables(tmp_path: Path) -> None:
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], str(tmp_path / "ws")], env=dict(os.environ))
    async with Client(server) as one, Client(server, mode="legacy") as two:
        await asyncio.gather(run(one, "x = 1\nopen('file', 'w').write('shared')"), run(two, "y = 2"))
        assert text(await run(two, "open('file').read()")) == "'shared'"
        assert (await run(two, "x")).is_error


@asynccontextmanager
async def served(directory: Path, *arguments: str) -> AsyncIterator[tuple[str, str]]:
    """Serve over HTTP; yield the address and the token."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, str(directory / "ws"), "--transport", "http", "--port", "0", *arguments), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        said = ""
        while "Bearer" not in said:
            line = await process.stderr.readline()
            assert line, said
            said += line.decode()
        address, token = re.search(r"http://\S+/mcp", said), re.search(r"Bearer (\S+)", said)
        assert address is not None
        assert token is not None
        yield address[0], token[1]
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()


async def first_line(address: str, header: str) -> str:
    """Return the beginning of the answer to a request that accepts nothing."""
    host = address.split("/")[2]
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(f"POST /mcp HTTP/1.1\r\nHost: {host}\r\n{header}\r\nContent-Length: 0\r\n".encode())
    writer.write(b"Content-Type: application/json\r\nAccept: text/plain\r\nConnection: close\r\n\r\n")
    line = (await reader.readline()).decode().strip()
    writer.close()
    await writer.wait_closed()
    return line


@asynccontextmanager
async def remote(address: str, token: str, **options: Any) -> AsyncIterator[Client]:
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=120)
    async with http, Client(streamable_http_client(address, http_client=http), **options) as client:
        yield client


async def test_over_http_only_those_with_the_token(tmp_path: Path, temporary: Path) -> None:
    async with served(tmp_path) as (address, token), httpx2.AsyncClient() as http:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

        async def status(**more: str) -> int:
            return (await http.post(address, json=HELLO, headers=headers | more)).status_code

        good = {"Authorization": f"Bearer {token}"}
        assert await status() == 401
        assert await status(Authorization="Bearer wrong") == 401
        assert await status(Authorization=token) == 401
        assert await status(**good) == 200
        assert await status(**good, Host="evil.example") == 421
        assert await status(**good, Origin="http://evil.example") == 403
        assert await first_line(address, f"Authorization:   Bearer {token}  ") == "HTTP/1.1 406 Not Acceptable"
        async with remote(address, token) as client:
            first = await run(client, "x = 41")
            handle = data(first)["session"]
        async with remote(address, token, mode="legacy") as client:  # it was away, and comes back
            assert text(await run(client, "x + 1", session=handle)).endswith("\n42")
    await eventually(lambda: not left(temporary))


async def test_dozens_of_clients(tmp_path: Path) -> None:
    async with served(tmp_path) as (address, token):
        turns = asyncio.Semaphore(20)

        async def one(number: int) -> str:
            async with turns, remote(address, token, mode="legacy" if number % 2 else "auto") as client:
                handle = str(data(await run(client, f"x = {number}\nopen('mine', 'w').write(str(x))"))["session"])
                seen = "import os\nx, open('mine').read(), [name for name in os.listdir('..') if name.startswith('s-')]"
                answer = text(await run(client, seen, session=handle)).splitlines()[-1]
                assert answer == f"({number}, '{number}', ['{handle}'])"
                return handle

        handles = await asyncio.gather(*map(one, range(40)))
        assert len(set(handles)) == 40
