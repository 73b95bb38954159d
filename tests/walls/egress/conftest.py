"""A proxy on a listener of its own, local servers behind it, and a watch for what a test leaves behind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from cellblock.walls.egress.gate import Ask, EgressLimits, dial
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.names import Address
from cellblock.walls.egress.rules import Denial, Rules
from cellblock.walls.proxy.proxy import EgressProxy
from processes import below, descriptors, eventually

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
async def nothing_left_behind() -> AsyncIterator[None]:
    """Fail a test after which a task, a descriptor or a process is left that was not there before. Needs no kernels."""
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    tasks, opened, processes = asyncio.all_tasks(), len(descriptors()), len(below(os.getpid()))
    yield
    await eventually(lambda: len(descriptors()) <= opened)
    await eventually(lambda: not {task for task in asyncio.all_tasks() - tasks if task is not asyncio.current_task()})
    await eventually(lambda: len(below(os.getpid())) <= processes)
    loop.set_exception_handler(None)
    assert not reported


def listener(backlog: int = 128) -> socket.socket:
    """Return a listening socket on loopback."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(backlog)
    return made


def port_of(made: socket.socket) -> int:
    """Return the port that a socket is bound to."""
    port: int = made.getsockname()[1]
    return port


@dataclass
class Running:
    """A running proxy and what it was seen to do."""

    proxy: EgressProxy
    port: int
    denials: list[Denial]
    network: LiveNetwork
    lookups: list[str] = field(default_factory=list)
    dialled: list[str] = field(default_factory=list)

    @property
    def connections(self) -> int:
        """How many clients the proxy has."""
        return len(self.proxy._clients)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to it as a client."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own, and return all that comes back."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            await writer.drain()
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()

    async def connect_status(self, authority: str) -> int:
        """Return the status that CONNECT gets; the tunnel, if there is one, is closed."""
        reader, writer = await self.connect()
        try:
            writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
            return int((await asyncio.wait_for(reader.readline(), 10)).split()[1])
        finally:
            writer.transport.abort()

    async def socks_code(self, request: bytes, *, greeting: bytes = b"\x05\x01\x00") -> int | None:
        """Return the code of a SOCKS5 reply, None where there was none."""
        reader, writer = await self.connect()
        try:
            writer.write(greeting)
            if (await asyncio.wait_for(reader.read(2), 10)) != b"\x05\x00":
                return None
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(10), 10)
            return answer[1] if answer else None
        finally:
            writer.transport.abort()

    async def socks_name(self, name: bytes, port: int) -> int | None:
        """Ask for a host by name over SOCKS5, and return the code of the reply."""
        return await self.socks_code(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big"))


class Starter:
    """Starts proxies and servers for one test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def proxy(
        self,
        *patterns: str,
        denied: Sequence[str] = (),
        names: Mapping[str, Sequence[str]] | None = None,
        limits: EgressLimits | None = None,
        dial: Callable[[Address, int], Awaitable[socket.socket]] = dial,
        resolve: Callable[[str], Awaitable[Sequence[str]]] | None = None,
        backlog: int = 128,
        ask: Ask | None = None,
    ) -> Running:
        """Start a proxy with these rules; `names` is what the world's name servers say."""

        async def looked_up(name: str) -> Sequence[str]:
            running.lookups.append(name)
            if resolve is not None:
                return await resolve(name)
            if name not in (names or {}):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return (names or {})[name]

        async def dialled(address: Address, port: int) -> socket.socket:
            running.dialled.append(f"{address}:{port}")
            return await dial(address, port)

        denials: list[Denial] = []
        live = LiveNetwork(Rules.parse(patterns, denied))
        made = listener(backlog)
        proxy = EgressProxy(
            made,
            live,
            on_denied=denials.append,
            limits=limits or EgressLimits(),
            resolve=looked_up,
            dial=dialled,
            ask=ask,
        )
        running = Running(proxy, port_of(made), denials, live)
        await proxy.start()
        self._stack.push_async_callback(proxy.close)
        return running

    async def server(self, handler: Handler, **options: Any) -> int:
        """Start a TCP server on loopback, and return its port."""

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(served, "127.0.0.1", 0, **options)

        async def close() -> None:
            server.close()

        self._stack.push_async_callback(close)
        return port_of(server.sockets[0])

    async def echo(self) -> int:
        """Start a server that says what it hears."""

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

        return await self.server(handler)

    async def http(self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello") -> tuple[int, list[bytes]]:
        """Start a server that gives one answer to every request; return its port and the bytes of each connection."""
        heard: list[bytes] = []

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            index = len(heard)
            heard.append(b"")
            while b"\r\n\r\n" not in heard[index]:
                if not (data := await reader.read(65536)):
                    return
                heard[index] += data
            writer.write(answer)
            await writer.drain()
            writer.write_eof()
            while data := await reader.read(65536):
                heard[index] += data

        return await self.server(handler), heard


@asynccontextmanager
async def starter() -> AsyncIterator[Starter]:
    """Close everything that was started, in the opposite order."""
    async with AsyncExitStack() as stack:
        yield Starter(stack)


@pytest.fixture
async def start() -> AsyncIterator[Starter]:
    """What starts proxies and servers."""
    async with starter() as started:
        yield started


async def to_web(start: Starter, port: int, limits: EgressLimits | None = None) -> Running:
    """Return a proxy that lets clients reach web.test on a port, which is this machine."""
    return await start.proxy(f"web.test:{port}", f"127.0.0.1:{port}", names={"web.test": ["127.0.0.1"]}, limits=limits)


async def tunnel(
    running: Running, port: int, host: str = "web.test", early: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a tunnel through a proxy."""
    reader, writer = await running.connect()
    writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() + early)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
    return reader, writer
