"""Large events, each in its own file next to the database.

A disk can stall, and the event loop must not wait for it. A thread therefore writes very large data before it becomes an
event, and reads and removes the files.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cellblock.common.threads import Threads
from cellblock.wire.packed import unpack

_log = logging.getLogger("cellblock.store")

MAX_AT_ONCE = 1024 * 1024
"""Bytes that are written in the loop; more are written in a thread."""

_AHEAD = "ahead"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class EventFiles:
    """A directory with a file for each large event."""

    def __init__(self, directory: Path) -> None:
        """Open or create a directory, which no other process may use."""
        self._directory = directory
        self._thread = Threads(1, "cellblock-journal")
        self._numbers = itertools.count()
        for place in (directory, directory / _AHEAD):
            place.mkdir(mode=0o700, exist_ok=True)
        for left in (directory / _AHEAD).iterdir():  # left by a killed process: these never became events
            left.unlink()

    async def write_ahead(self, packed: bytes) -> Path | None:
        """Write the data of a future event to a file, if it is very large; return the file, for `put`."""
        if len(packed) <= MAX_AT_ONCE:
            return None
        path = self._directory / _AHEAD / str(next(self._numbers))
        writing = self._thread.submit(_write, path, packed)
        try:
            written = await asyncio.wrap_future(writing)
        except asyncio.CancelledError:
            self._thread.submit(_remove, [path])
            raise
        return path if written else None

    def put(self, number: int, seq: int, packed: bytes, ahead: Path | None) -> bool:
        """Write the file of an event, or move the file written ahead into place. Return whether that worked."""
        path = self._path(number, seq)
        if ahead is None:
            return _write(path, packed)
        try:
            os.rename(ahead, path)
        except OSError as error:
            _log.warning("%s cannot be written: %s", path, error)
            return False
        return True

    async def read(self, number: int, seq: int) -> Any:
        """Read the data of an event from its file. Reading and unpacking run in the thread, as both can take long.

        Raises:
            OSError: The file cannot be read.
            ProtocolError: The file is damaged.
        """
        return await asyncio.wrap_future(self._thread.submit(_read, self._path(number, seq)))

    def remove(self, events: Iterable[tuple[int, int]]) -> None:
        """Remove the files of events in the background. Each event is given by its execution's number and its own."""
        if paths := [self._path(number, seq) for number, seq in events]:
            self._thread.submit(_remove, paths)

    def close(self) -> None:
        """Finish pending work."""
        self._thread.shutdown()

    def _path(self, number: int, seq: int) -> Path:
        return self._directory / f"{number:x}-{seq}"


def _write(path: Path, data: bytes) -> bool:
    """Write a file; return whether that worked."""
    try:
        with open(os.open(path, _NEW_FILE, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error)
        _remove([path])
        return False
    return True


def _read(path: Path) -> Any:
    return unpack(path.read_bytes())


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
