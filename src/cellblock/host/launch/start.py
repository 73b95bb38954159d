"""Starts the first process of a launcher, directly or (in `cellblock.host.launch.srt`) under srt."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Protocol

from cellblock.host.descriptors import Child, process_ended
from cellblock.walls.sandbox.ground import ENVIRONMENT

_PATIENCE = 5.0
"""Seconds that a process may take to exit."""


class Started(Child, Protocol):
    """A started process: a `subprocess.Popen`, or one of the custodian's."""

    def wait(self, timeout: float) -> int:
        """Wait for the exit code, or raise `subprocess.TimeoutExpired`."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to the process."""

    def kill(self) -> None:
        """Kill the process."""


class Starter:
    """Starts and ends the first process of a launcher: an interpreter directly, unless a subclass starts it in another way."""

    command: str | None = None
    """The command that is started instead of the interpreter, and starts it; None to start the interpreter directly."""

    def start(self, arguments: Sequence[str], control: socket.socket, stderr: int) -> Started:
        """Start an interpreter in its own session (setsid).

        Args:
            arguments: The interpreter and its arguments; the first argument is the path of boot.py.
            control: Its standard input.
            stderr: Its standard output and error.
        """
        return subprocess.Popen(
            arguments,
            stdin=control.fileno(),
            stdout=stderr,
            stderr=stderr,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )

    def terminate(self, process: Started) -> None:
        """Ask the process to exit."""
        process.send_signal(signal.SIGTERM)

    async def end(self, process: Started) -> None:
        """Wait for the exit, after its control socket was closed. Kill the process if it does not exit."""
        if not await process_ended(process, timeout=_PATIENCE):
            process.kill()
            await process_ended(process, timeout=_PATIENCE)
        process.poll()

    def packages(self, process: Started) -> str | None:
        """Return the directory for packages of the sessions in its sandbox, if any."""
        return None
