"""Starts launchers' processes as children of the custodian."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence

from cellblock.host.launch.start import Started
from cellblock.launch.custody.client import Custodian, Process


class ByCustodian:
    """Starts interpreters as children of the custodian, which outlives this process."""

    command: str | None = None

    def __init__(self, custodian: Custodian) -> None:
        self._custodian = custodian

    def start(self, arguments: Sequence[str], control: socket.socket, stderr: int) -> Started:
        """See `Starter`."""
        return self._custodian.start(arguments, control.fileno(), stderr)

    def terminate(self, process: Started) -> None:
        """See `Starter`."""
        process.send_signal(signal.SIGTERM)

    async def end(self, process: Started) -> None:
        """See `Starter`."""
        assert isinstance(process, Process)
        if not await process.ended(5):
            process.kill()
            await process.ended(5)
        process.close()

    def packages(self, process: Started) -> str | None:
        """See `Starter`."""
        return None
