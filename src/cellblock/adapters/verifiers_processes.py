"""Interactive programs of a verifiers harness."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator

from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes.base import RuntimeProcess

from cellblock.host.programs.process import Process
from cellblock.model.programs import ExecResult

MAX_OUTPUT = 64 << 20
"""Bytes of a program's output that are kept until they are read."""


class CellblockProcess(RuntimeProcess):
    """A program with its streams. Both must be read, because unread output is limited."""

    def __init__(self, process: Process) -> None:
        """Take over a program that was started with a standard input."""
        self._process = process
        self._position = 0
        self._waiting: dict[str, deque[bytes]] = {"stdout": deque(), "stderr": deque()}
        self._turn = asyncio.Lock()
        self.stdout, self.stderr = self._stream("stdout"), self._stream("stderr")

    async def _stream(self, name: str) -> AsyncIterator[bytes]:
        mine = self._waiting[name]
        while True:
            while mine:
                yield mine.popleft()
            async with self._turn:
                if mine:
                    continue
                pieces = await self._process.read(self._position)
                for piece in pieces:
                    self._waiting[piece.stream].append(piece.data)
                    self._position = piece.offset + len(piece.data)
                if not pieces:
                    return
                if sum(len(data) for other in self._waiting.values() if other is not mine for data in other) > MAX_OUTPUT:
                    raise SandboxError(f"the program waits because its other stream is full: read it as well as {name}")

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        return exit_code(await self._process.wait())

    async def poll(self) -> int | None:
        """Return the exit code, if the program has ended."""
        ended = self._process.poll()
        return None if ended is None else exit_code(ended)

    async def terminate(self) -> None:
        """Terminate the program and its child processes."""
        self._process.signal(signal.SIGTERM, "tree")

    async def kill(self) -> None:
        """Kill the program and its child processes."""
        self._process.signal(signal.SIGKILL, "tree")


def exit_code(ended: ExecResult) -> int:
    """Return the exit code of a program that has ended.

    Raises:
        SandboxError: The session has ended, or the outcome is unknown.
    """
    if ended.status in ("cancelled", "unknown") or ended.exit_code is None:
        raise SandboxError(f"the program has no result: {ended.reason}")
    return ended.exit_code
