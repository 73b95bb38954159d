"""The network of a sandboxed session, from code in it to a server on the other side of the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import (
    ConflictError,
    Host,
    InvalidInputError,
    Network,
    Policy,
    Session,
    SessionNetwork,
    StateError,
    UnsupportedError,
)
from cellblock.errors import NO_NETWORK, ONLY_PROXY
from processes import eventually
from suite import first_quick

# The proxy is for the network, and not used for one's own loopback interface unless one insists.
GET = """
import os, urllib.request as u
os.environ |= {'no_proxy': '', 'NO_PROXY': ''}
opener = u.build_opener(u.ProxyHandler({'http': 'http://127.0.0.1:3128'}))
"""


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Serve one line by HTTP on the host's loopback interface; return the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def policy(*allow: str) -> Policy:
    return Policy(network=Network(allow=allow))


async def fetch(session: Session, url: str) -> str:
    result = await session.execute(f"{GET}opener.open({url!r}).read().decode()")
    return result.return_value or result.text or ""


@pytest.mark.slow
async def test_an_address_that_the_policy_names_is_reached(port: int, tmp_path: Path) -> None:
    async with (
        Host(isolate="native", policy=policy(f"127.0.0.1:{port}")) as host,
        host.session(working_dir=tmp_path) as session,
    ):
        assert await fetch(session, f"http://127.0.0.1:{port}/") == "'hello'"
        assert session.denials == []


async def test_what_the_policy_does_not_name_is_refused_and_the_session_is_told_how_to_allow_it(
    port: int, native_host: Host, tmp_path: Path
) -> None:
    """A failed connection beside the proxy says that there is one."""
    async with native_host.session(working_dir=tmp_path, policy=policy("example.org"), recovery="none") as session:
        result = await session.execute(f"{GET}opener.open('http://127.0.0.1:{port}/')")
        assert result.error is not None
        assert result.error.evalue.startswith("HTTP Error 403")
        remedy = f"to allow it: cellblock network NAME --allow 127.0.0.1:{port}"
        assert remedy in result.stderr
        assert remedy in result.error.evalue
        assert [(denial.host, denial.port) for denial in session.denials] == [("127.0.0.1", port)]
        await session.execute("import asyncio, socket")
        for connection in (CONNECTIONS[0], CONNECTIONS[1], CONNECTIONS[3]):
            result = await session.execute(connection)
            assert result.error is not None
            assert ONLY_PROXY in result.error.evalue


async def test_the_network_is_there_again_after_a_reset(port: int, native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path, policy=policy(f"127.0.0.1:{port}")) as session:
        await session.reset()
        assert await fetch(session, f"http://127.0.0.1:{port}/") == "'hello'"


CONNECTIONS = [
    "socket.create_connection(('example.org', 80))",
    "socket.create_connection(('93.184.215.14', 80))",
    "urllib.request.urlopen('http://example.org')",
    "await asyncio.open_connection('example.org', 80)",
    "await asyncio.open_connection('93.184.215.14', 80)",
]


async def test_a_failed_connection_without_a_network_says_so_and_what_to_do(native_host: Host, tmp_path: Path) -> None:
    """There is no proxy either, and what refuses on the session's own loopback interface is not the network's fault."""
    async with native_host.session(working_dir=tmp_path, recovery="none") as session:
        proxies = await session.execute("import os; [name for name in os.environ if 'proxy' in name.lower()]")
        assert proxies.return_value == "[]"
        await session.execute("import asyncio, socket, urllib.request")
        for connection in CONNECTIONS[::2]:
            result = await session.execute(connection)
            assert result.error is not None
            assert NO_NETWORK in result.error.evalue
            assert NO_NETWORK in (result.text or "")
            assert "93.184" in connection or "open_connection" in connection or "name resolution" in result.error.evalue
        result = await session.execute("socket.create_connection(('127.0.0.1', 9))")
    assert result.error is not None
    assert result.error.ename == "ConnectionRefusedError"
    assert NO_NETWORK not in result.error.evalue


@pytest.mark.slow
async def test_pip_does_not_try_again_without_a_network(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        result = await session.execute("%%bash\npython -m pip download --no-deps six 2>&1 || true")
    assert "No matching distribution" in (result.text or "")
    assert "Retrying" not in (result.text or "")


@pytest.mark.slow
async def test_a_caller_decides_about_retries_and_a_network_has_them(native_host: Host, tmp_path: Path) -> None:
    names = "import os; [os.environ.get(name) for name in ('PIP_RETRIES', 'UV_HTTP_RETRIES')]"
    async with Host(isolate="native", policy=policy("example.org")) as host, host.session(working_dir=tmp_path) as session:
        assert (await session.execute(names)).return_value == "[None, None]"
    async with native_host.session(working_dir=tmp_path, kernel_env={"PIP_RETRIES": "3"}) as session:
        assert (await session.execute(names)).return_value == "['3', '0']"


class Person:
    """Somebody who is asked about hosts, and never answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.withdrawn = 0

    async def decide(self, host: str, port: int) -> bool:
        self.asked += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        return True


# The connection outlives the cell: the traceback of an interrupted one also keeps its variables.
ASK = """
import socket
kept = socket.create_connection(("127.0.0.1", 3128))
kept.sendall(b"CONNECT asked.test:443 HTTP/1.1\\r\\nHost: asked.test:443\\r\\n\\r\\n")
"""


@pytest.mark.parametrize(
    "how",
    first_quick(["cancel", "death", "restore", "timeout", "reset", "hang up"], 2),
)
async def test_a_question_about_a_host_ends_with_the_code_that_asked(how: str, native_host: Host, tmp_path: Path) -> None:
    person = Person()
    asking = Policy(network=Network(ask=True))
    waits = {"death": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "hang up": "kept.close()"}.get(
        how, "kept.recv(9)"
    )
    async with native_host.session(working_dir=tmp_path, policy=asking, on_host=person.decide, recovery="none") as session:
        before = await session.checkpoint("before")
        cell = asyncio.create_task(session.execute(ASK + waits, timeout=1 if how == "timeout" else 60))
        await eventually(lambda: person.asked == 1)
        match how:
            case "cancel":
                cell.cancel()
            case "restore":
                await session.restore(before)
            case "reset":
                await session.reset()
        await asyncio.wait([cell])
        await eventually(lambda: person.withdrawn == 1)


async def test_a_question_of_background_work_outlives_its_cell_until_another_is_stopped(
    native_host: Host, tmp_path: Path
) -> None:
    person = Person()
    asking = Policy(network=Network(ask=True))
    async with native_host.session(working_dir=tmp_path, policy=asking, on_host=person.decide, recovery="none") as session:
        await session.execute(ASK)
        await eventually(lambda: person.asked == 1)
        await session.execute("'another cell'")
        assert person.withdrawn == 0
        with_deadline = await session.execute("while True: pass", timeout=0.1)
        assert with_deadline.status == "timeout"
        await eventually(lambda: person.withdrawn == 1)
        assert (await session.execute("kept.recv(12)")).return_value == "b'HTTP/1.1 403'"


OPEN = """
import socket
tunnel = socket.create_connection(("127.0.0.1", 3128))
tunnel.sendall(b"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n")
print(tunnel.recv(100)[:12])
"""


@pytest.mark.slow
async def test_the_network_of_a_running_session_changes_at_once(port: int, native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path, policy=policy("example.org")) as session:
        url, line = f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}"
        assert "403" in await fetch(session, url)
        changed = await session.change_network(allow=[line], expect=0)
        assert (changed.allow, changed.revision, changed.closed) == (("example.org", line), 1, 0)
        assert await fetch(session, url) == "'hello'"
        await session.undo(2)
        await session.reset()
        assert session.network == changed
        assert await fetch(session, url) == "'hello'"
        assert (await session.execute(OPEN.format(port=port))).text == "b'HTTP/1.1 200'"
        with pytest.raises(ConflictError, match="has revision 1, not 0"):
            await session.change_network(remove=[line], expect=0)
        assert (await session.change_network(remove=[line])).closed == 1
        result = await session.execute("tunnel.send(b'GET / HTTP/1.1'); tunnel.recv(9)")
        assert result.error is not None
        assert result.error.ename in ("ConnectionResetError", "BrokenPipeError")
        assert "403" in await fetch(session, url)


@pytest.mark.slow
async def test_the_hosts_policy_limits_a_change(tmp_path: Path) -> None:
    async with (
        Host(isolate="native", policy=policy("*.example.org")) as host,
        host.session(working_dir=tmp_path, policy=policy("a.example.org")) as session,
    ):
        await session.change_network(allow=["b.example.org"])
        with pytest.raises(InvalidInputError, match="not allowed by the host's policy"):
            await session.change_network(allow=["example.com"])
        assert session.network.allow == ("a.example.org", "b.example.org")


async def test_a_network_that_cellblock_does_not_enforce_cannot_be_changed(
    tmp_path: Path, native_host: Host, zygote_host: Host
) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        assert session.network == SessionNetwork()
        with pytest.raises(StateError, match="was made without a network"):
            await session.change_network(allow=["example.org"])
    async with zygote_host.session(working_dir=tmp_path) as session:
        with pytest.raises(UnsupportedError, match="without a sandbox, nothing restricts it"):
            await session.change_network(allow=["example.org"])
        with pytest.raises(UnsupportedError, match="without a sandbox"):
            _ = session.network
