"""Init's answers belong to the commands that they answer, also when they are late."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import cast

from cellblock.host.kernels.kernel import Kernel
from cellblock.host.launch.control import Control
from cellblock.wire.control import TO_INIT, Frozen
from cellblock.wire.datagrams import encode_control


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
