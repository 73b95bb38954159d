"""Init's answers belong to the commands that they answer, also when they are late."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from cellblock.errors import KernelDiedError
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.launch.control import Control, ControlObserver
from cellblock.wire.control import TO_INIT, Dial, Dialled, Frozen
from cellblock.wire.datagrams import encode_control
from processes import eventually


async def test_a_late_answer_is_not_that_of_the_next_command() -> None:
    ours, init = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, init:
        control = Control(ours)
        control.read()
        try:
            assert await control.freeze() == 1  # init is silent, so it is not known whether anything is stopped
            control.thaw()
            again = asyncio.ensure_future(control.freeze())
            await asyncio.sleep(0)
            init.send(encode_control(Frozen(0)))  # before it has thawed them
            init.send(encode_control(Frozen(3)))
            assert await again == 3
            assert [TO_INIT.decode(init.recv(1000)).op for _ in range(3)] == ["freeze", "thaw", "freeze"]
        finally:
            asyncio.get_running_loop().remove_reader(ours.fileno())


async def test_processes_continue_for_longer_each_time_until_they_can_be_stopped() -> None:
    """A new process that vfork has made needs a turn to execute its program: 1 ms is not enough on a busy machine."""

    class SlowTree:
        """Processes that stop once they have run for 50 ms without a pause."""

        def __init__(self) -> None:
            self.running_since: float | None = None
            self.ready = False

        async def freeze(self) -> int:
            now = asyncio.get_running_loop().time()
            self.ready = self.ready or (self.running_since is not None and now - self.running_since >= 0.05)
            self.running_since = None
            return 0 if self.ready else 1

        def thaw(self) -> None:
            self.running_since = asyncio.get_running_loop().time()

    kernel = cast(Kernel, SimpleNamespace(_loop=asyncio.get_running_loop(), control=SlowTree()))
    assert await Kernel.freeze(kernel) == 0


@pytest.fixture
async def dialling() -> AsyncIterator[tuple[Control, socket.socket, list[str]]]:
    """A control connection, its other end, and what the observer was told."""
    ours, init = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    said: list[str] = []

    class Observer(ControlObserver):
        def violated(self, what: str) -> None:
            said.append(what)

    with ours, init:
        ours.setblocking(False)
        control = Control(ours, Observer())
        control.read()
        yield control, init, said
        asyncio.get_running_loop().remove_reader(ours.fileno())


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _connection() -> socket.socket:
    with _listener() as server:
        return socket.create_connection(server.getsockname())


@pytest.mark.parametrize(
    "make",
    [
        _listener,
        _connection,  # in the network of this process, not of a session
        lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        None,
    ],
    ids=["a listener", "a connection of the machine", "version 6", "a datagram socket", "a local socket", "nothing"],
)
async def test_what_is_no_connection_within_the_session_is_a_violation(
    dialling: tuple[Control, socket.socket, list[str]], make: Callable[[], socket.socket] | None
) -> None:
    """Otherwise, code that has taken init over could make the host talk to a server of the machine."""
    control, init, said = dialling
    waiting = asyncio.ensure_future(control.dial(80))
    await asyncio.sleep(0)
    number = cast(Dial, TO_INIT.decode(init.recv(1000))).number
    if make is None:
        init.send(encode_control(Dialled(number, 0)))
    else:
        with make() as passed:
            socket.send_fds(init, [encode_control(Dialled(number, 0))], [passed.fileno()])
    await eventually(lambda: bool(said))
    assert said == ["it passed something else than a connection within the session"]
    assert not waiting.done()
    control.give_up("it was killed")
    with pytest.raises(KernelDiedError, match="it was killed"):
        await waiting


async def test_a_connection_that_another_host_asked_for_is_closed(
    dialling: tuple[Control, socket.socket, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.host.launch.control.is_in_other_network", lambda _: True)
    control, init, said = dialling
    waiting = asyncio.ensure_future(control.dial(80))
    await asyncio.sleep(0)
    number = cast(Dial, TO_INIT.decode(init.recv(1000))).number
    with _listener() as server, socket.create_connection(server.getsockname()) as passed, server.accept()[0] as other_end:
        socket.send_fds(init, [encode_control(Dialled(number + 7, 0))], [passed.fileno()])
        passed.close()
        await asyncio.sleep(0.01)
        other_end.settimeout(10)
        assert other_end.recv(1) == b""
    init.send(encode_control(Dialled(number, errno.ECONNREFUSED)))
    with pytest.raises(ConnectionRefusedError):
        await waiting
    assert not said
