"""Connections to servers in a session: who is reached, what is listed, and what is refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cellblock import (
    AccessError,
    BusyError,
    Host,
    InvalidInputError,
    NotFoundError,
    Policy,
    Session,
    StateError,
    UnsupportedError,
)
from cellblock.host.options import SessionHooks
from cellblock.walls.sandbox.plan import EGRESS_PORT
from cellblock.walls.sandbox.policy import Network
from cells import ok, value

SERVER = """
import asyncio, socket
async def answer(reader, writer):
    writer.write(await reader.readline())
    await writer.drain()
    writer.close()
server = await asyncio.start_server(answer, "127.0.0.1", 0)
server.sockets[0].getsockname()[1]
"""
"""Starts a server that repeats a line, in the kernel's own loop, and shows its port."""


@pytest.fixture
async def native(native_host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    async with native_host.session(working_dir=tmp_path, recovery="none") as made:
        yield made


async def echo(session: Session, port: int, line: bytes = b"hello\n") -> bytes:
    reader, writer = await asyncio.open_connection(sock=await session.connect(port))
    try:
        writer.write(line)
        return await reader.readline()
    finally:
        writer.close()


async def test_a_program_talks_to_a_server_of_the_code(native: Session) -> None:
    """And leaves nothing behind: not by hundreds of dials, nor if it gives up."""
    port = await value(native, SERVER)
    assert await echo(native, port) == b"hello\n"
    assert await native.ports() == [port]
    # Hundreds of dials leave nothing behind.
    port = await value(native, SERVER)

    async def dial() -> bool:
        (await native.connect(port)).close()
        return True

    for _ in range(3):
        assert all(await asyncio.gather(*(dial() for _ in range(100))))
    assert await echo(native, port) == b"hello\n"
    # Who gives up leaves no connection.
    port = await value(native, SERVER)
    for pause in (0, 0, 0.001, 0.002):
        dialling = asyncio.ensure_future(native.connect(port))
        await asyncio.sleep(pause)
        dialling.cancel()
        for one in await asyncio.gather(dialling, return_exceptions=True):
            if isinstance(one, socket.socket):
                one.close()
    assert await echo(native, port) == b"hello\n"


async def _is_reached(session: Session, port: int) -> bool:
    try:
        made = await session.connect(port)
    except NotFoundError:
        return False
    made.close()
    return True


async def test_the_listed_ports_are_those_that_can_be_reached(native: Session) -> None:
    """Those of the host are not, and a port without a server is refused with advice."""
    # A port without a server is refused with advice.
    with pytest.raises(NotFoundError, match=r"nothing listens at port 9 of session .*: start the server first"):
        await native.connect(9)
    assert await native.ports() == []
    # The listed ports are those that can be reached.
    code = """
import socket
made = [socket.create_server((address, 0)) for address in ("127.0.0.1", "0.0.0.0", "127.0.0.2")]
made += [socket.create_server((address, 0), family=socket.AF_INET6, dualstack_ipv6=both)
         for address, both in (("::", True), ("::", False), ("::1", False))]
bound = socket.socket()
bound.bind(("127.0.0.1", 0))
[one.getsockname()[1] for one in (*made, bound)]
"""
    ports = await value(native, code)
    reached = [port for port in ports if await _is_reached(native, port)]
    assert reached == [ports[0], ports[1], ports[3]]
    assert await native.ports() == sorted(reached)
    # The hosts own servers are not reached. The number of a port of the machine means the session's port.
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(NotFoundError):
        await native.connect(server.getsockname()[1])


async def test_what_is_no_port_is_refused(native: Session) -> None:
    for port in (0, -1, 65_536, "80", True, 8501.0):
        with pytest.raises(InvalidInputError, match="a port is a number from 1 to 65535"):
            await native.connect(port)  # type: ignore[arg-type]


async def test_the_ports_of_cellblock_itself_are_refused_and_not_listed(native_host: Host, tmp_path: Path) -> None:
    taken: list[socket.socket] = []

    def take(listener: socket.socket) -> Callable[[], None]:
        taken.append(listener)
        return listener.close

    hooks = SessionHooks(tool_port=take)
    policy = Policy(network=Network(allow=("example.org",)))
    async with native_host.session(working_dir=tmp_path, policy=policy, hooks=hooks) as session:
        await ok(session, "1")
        for port in (EGRESS_PORT, taken[0].getsockname()[1]):
            with pytest.raises(AccessError, match="cellblock's own: its tools or its proxy"):
                await session.connect(port)
        assert await session.ports() == []
    for listener in taken:
        listener.close()


async def test_a_session_without_a_network_of_its_own_has_no_ports(session: Session) -> None:
    """Its ports are the machine's: other programs' servers would be reached."""
    with pytest.raises(UnsupportedError, match="ports need isolate='native'"):
        await session.connect(80)
    with pytest.raises(UnsupportedError, match="ports need isolate='native'"):
        await session.ports()


async def test_a_server_that_accepts_nothing_delays_only_who_asks(native: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.host.ports._PATIENCE", 0.1)
    code = "import socket; full = socket.socket(); full.bind(('127.0.0.1', 0)); full.listen(0); full.getsockname()[1]"
    port = await value(native, code)
    waiting = [asyncio.ensure_future(native.connect(port)) for _ in range(8)]
    assert await value(native, "1 + 1", timeout=10) == 2
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(one, BusyError) for one in answers) >= 5
    for one in answers:
        if isinstance(one, socket.socket):
            one.close()


async def test_code_that_takes_up_the_messages_of_descriptors_takes_no_one_in(native: Session) -> None:
    """Descriptors on their way are counted for all of the user's processes together."""
    port = await value(native, SERVER)
    code = """
import array, socket, resource
pairs, sent = [], 0
some = array.array("i", [1] * 200).tobytes()
try:
    for _ in range(100):
        pairs.append(socket.socketpair())
        for _ in range(5):
            pairs[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)], socket.MSG_DONTWAIT)
            sent += 1
except OSError as error:
    sent = error.errno
"""
    await ok(native, code)
    try:
        assert await echo(native, port) == b"hello\n"
    except BusyError as error:
        assert "possible now" in str(error)  # noqa: PT017  # it says so, and is not killed
    await ok(native, "del pairs")
    assert await echo(native, port) == b"hello\n"


async def test_a_closed_session_has_no_ports(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        port = await value(session, SERVER)
        reader, writer = await asyncio.open_connection(sock=await session.connect(port))
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(StateError, match="closed"):
        await session.connect(port)
