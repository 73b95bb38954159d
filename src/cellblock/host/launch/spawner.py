"""Starts a fresh interpreter for every kernel."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Sequence

from cellblock.errors import LaunchError
from cellblock.host.launch.launcher import Boot, Ends, Launcher, connect, exit_code, launching
from cellblock.host.launch.start import Started
from cellblock.host.launch_failures import died
from cellblock.walls.sandbox.cgroups import Group
from cellblock.wire.control import EXIT_UNCONFINED, Fork, Setup
from cellblock.wire.datagrams import encode_control


class Spawner(Launcher):
    """A launcher that starts a fresh interpreter for every kernel, for systems where forking a loaded one is not safe."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._processes: dict[int, Started] = {}

    def launch(self, number: int, setup: Setup) -> Ends:
        self._forget_ended()
        group = self._boot.make_group()
        with launching(group):
            return connect(setup, group, functools.partial(self._spawn, number, group))

    def _spawn(self, number: int, group: Group | None, descriptors: Sequence[int]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            # Errors before the descriptors are in place are written to the kernel's own stderr.
            self._processes[number] = self._boot.run("spawn", theirs, descriptors[-1])
            self._boot.greet(ours, group)
            try:
                socket.send_fds(ours, [encode_control(Fork(number))], descriptors)
            except ConnectionError:
                pass  # it has ended already: the other ends of its connections close, which is noticed

    def kill(self, number: int) -> None:
        process = self._processes.get(number)
        if process is not None and process.poll() is None:
            # On Linux, SIGTERM alone would suffice. Elsewhere, nothing else ends what init leaves behind.
            self._boot.starter.terminate(process)

    def packages(self, number: int) -> str | None:
        process = self._processes.get(number)
        return None if process is None else self._boot.starter.packages(process)

    def explain(self, number: int, said: str, status: int | None, cause: str) -> LaunchError:
        process = self._processes.get(number)
        code = None
        if status is not None and 0 <= status <= 0xFFFF and os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
        elif process is not None:
            code = exit_code(process)
        if code == EXIT_UNCONFINED:
            return died(cause, status, said)
        return self._boot.failure(code, said)

    def _forget_ended(self) -> None:
        for number, process in [*self._processes.items()]:
            if process.poll() is not None:
                del self._processes[number]

    async def close(self) -> None:
        for process in self._processes.values():
            await self._boot.starter.end(process)
        self._processes.clear()
