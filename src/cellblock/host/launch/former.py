"""Zygotes of a killed host: their kernels live on, new ones come from other zygotes."""

from __future__ import annotations

import socket
from collections.abc import Callable

from cellblock.errors import LaunchError
from cellblock.host.descriptors import Tail
from cellblock.host.launch.failures import died
from cellblock.host.launch.launcher import Ends
from cellblock.launch.custody.client import Process
from cellblock.wire.control import End, Kill, Setup
from cellblock.wire.datagrams import encode_control


class FormerZygote:
    """A zygote that makes no more kernels. Its last request, and the control group that came with it, are unknown."""

    interpreter: tuple[str, ...] | None = None
    alive = False

    def __init__(self, control: socket.socket, stderr: int, process: Process, on_closed: Callable[[], object]) -> None:
        """Take over a zygote.

        Args:
            control: The connection to it.
            stderr: The reading end of its standard error.
            process: Its process.
            on_closed: Called when it has ended.
        """
        self._control = control
        self._stderr = stderr
        self._said = Tail()
        self._process = process
        self._on_closed = on_closed
        self._closed = False

    def begin(self) -> None:
        """See `Launcher`."""
        self._said.follow(self._stderr)

    async def start(self, timeout: float) -> None:
        """See `Launcher`."""

    async def room(self, timeout: float) -> None:
        """See `Launcher`."""

    def launch(self, number: int, setup: Setup) -> Ends:
        """See `Launcher`."""
        raise LaunchError("this fork server makes no more kernels")

    def kill(self, number: int) -> None:
        """See `Launcher`."""
        try:
            self._control.send(encode_control(Kill(number)))
        except OSError:
            return  # it has ended, and every init with it

    def packages(self, number: int) -> str | None:
        """See `Launcher`."""
        return None

    def explain(self, number: int, said: str, status: int | None, cause: str) -> LaunchError:
        """See `Launcher`."""
        return died(cause, status, said or self._said.text())

    async def close(self) -> None:
        """See `Launcher`."""
        if self._closed:
            return
        self._closed = True
        try:
            self._control.send(encode_control(End()))
        except OSError:
            pass  # it has ended
        self._control.close()
        if not await self._process.ended(5):
            self._process.kill()
            await self._process.ended(5)
        self._process.close()
        self._said.close()
        self._on_closed()
