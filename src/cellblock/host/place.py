"""Directories that the host makes for one session, and removes with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Protocol

from cellblock.leftovers import make_place, remove_place
from cellblock.threads import run_aside
from cellblock.wire.sandbox import Bind


class Places(Protocol):
    """Keeps directories for the next process, if this one is killed."""

    def place_made(self, path: str, held: int) -> None:
        """Have a directory held, so that nobody takes it for abandoned."""

    def place_gone(self, path: str) -> None:
        """Have a directory held no longer."""

    def take_place(self, path: str) -> int | None:
        """Return the descriptor of a directory that an earlier process has made, if it has; the caller's to close."""


_PATIENCE = 2.0  # seconds for a directory to be removed while somebody waits


class SessionPlace:
    """A directory that is made when it is needed, and that nobody takes for abandoned while this process lives.

    Attributes:
        path: Where it lies.
        made: Whether it is there.
    """

    def __init__(self, path: str, places: Places | None = None) -> None:
        """Take note of a path, and make nothing yet.

        Args:
            path: Nothing is there, or what an earlier process has made.
            places: Who keeps it, if it is to outlive this process.
        """
        self.path = path
        self._places = places
        self._held = None if places is None else places.take_place(path)
        self.made = self._held is not None

    def make(self) -> None:
        """Make it, if it is not there.

        Raises:
            OSError: It cannot be made.
        """
        if not self.made:
            self._held = make_place(self.path)
            self.made = True
            if self._places is not None:
                self._places.place_made(self.path, self._held)

    def clean(self) -> None:
        """Remove what belongs to it and lies elsewhere. In a thread, before it is removed itself."""

    async def remove(self, patience: float = _PATIENCE) -> None:
        """Remove it. What takes longer than somebody waits goes on in a thread, and the program ends after it.

        Args:
            patience: Seconds to wait.
        """
        if not self.made:
            return
        self.made = False
        held, self._held = self._held, None
        if self._places is not None:
            self._places.place_gone(self.path)
        loop = asyncio.get_running_loop()
        removed = asyncio.Event()

        def remove() -> None:
            self.clean()
            remove_place(self.path)
            if held is not None:
                os.close(held)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(removed.set)

        try:
            os.rmdir(self.path)  # usually there is nothing in it
        except OSError:
            run_aside(remove, "cellblock-removal")
        else:
            if held is not None:
                os.close(held)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await removed.wait()


class PrivateDirectories(SessionPlace):
    """What a session has in place of /tmp and a home directory, if no mount can put them there."""

    @property
    def home(self) -> str:
        """The home directory."""
        return f"{self.path}/home"

    @property
    def tmp(self) -> str:
        """The directory for temporary files."""
        return f"{self.path}/tmp"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name them to programs, and send programs to no other place for settings."""
        # git ends if there is an /etc/gitconfig that it may not read.
        return {"HOME": self.home, "TMPDIR": self.tmp, "GIT_CONFIG_NOSYSTEM": "1"}

    @property
    def mounts(self) -> tuple[Bind, ...]:
        """What lets a session write to them."""
        return tuple(Bind(path, path, "rw") for path in (self.home, self.tmp))

    def make(self) -> None:
        """Make them, if they are not there."""
        super().make()
        for path in (self.home, self.tmp):
            os.makedirs(path, 0o700, exist_ok=True)

    async def remove(self, patience: float = _PATIENCE) -> None:
        """Remove them."""
        for path in (self.home, self.tmp) if self.made else ():
            with contextlib.suppress(OSError):  # there is something in it
                os.rmdir(path)
        await super().remove(patience)
