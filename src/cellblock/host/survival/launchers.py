"""Launchers that outlive their host: started and held by the custodian, and left by a killed host."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from cellblock.errors import LaunchError
from cellblock.host.descriptors import Tail
from cellblock.host.launch.launcher import Ends, Launcher
from cellblock.host.launch.start import Started, Starter
from cellblock.host.launch_failures import died
from cellblock.launch.custody.custodian_client import Custodian, Process
from cellblock.wire.control import End, Kill, Setup
from cellblock.wire.datagrams import encode_control

_GRACE = 5.0
"""Seconds that a launcher has to end."""


class FormerZygote(Launcher):
    """A zygote that creates no more kernels. The state of its last request, with its control group, is unknown."""

    def __init__(self, control: socket.socket, stderr: int, process: Process, on_closed: Callable[[], object]) -> None:
        """Take over a zygote: its connection, the reading end of its standard error, and its process."""
        self._control = control
        self._stderr = stderr
        self._said = Tail()
        self._process = process
        self._on_closed = on_closed
        self._closed = False

    @property
    def alive(self) -> bool:
        return False

    def begin(self) -> None:
        self._said.follow(self._stderr)

    def launch(self, number: int, setup: Setup) -> Ends:
        raise LaunchError("this fork server creates no more kernels")

    def kill(self, number: int) -> None:
        try:
            self._control.send(encode_control(Kill(number)))
        except OSError:
            return  # it has ended, and every init with it

    def explain(self, number: int, said: str, status: int | None, cause: str) -> LaunchError:
        return died(cause, status, said or self._said.text())

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._control.send(encode_control(End()))
        except OSError:
            pass  # it has ended
        self._control.close()
        await self._process.end(_GRACE)
        self._said.close()
        self._on_closed()


class ByCustodian(Starter):
    """Starts interpreters as children of the custodian, which outlives this process."""

    def __init__(self, custodian: Custodian) -> None:
        self._custodian = custodian

    def start(self, arguments: Sequence[str], control: socket.socket, stderr: int) -> Started:
        return self._custodian.start(arguments, control.fileno(), stderr)

    async def end(self, process: Started) -> None:
        assert isinstance(process, Process)
        await process.end(_GRACE)
