"""Directories that the host creates for one session, and removes with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile

from cellblock.common.threads import run_aside
from cellblock.launch.leftovers import find_places, make_place, remove_abandoned, remove_place
from cellblock.wire.sandbox import Bind


class Places:
    """A null registry of directories that the next process takes over if this one is killed."""

    def place_made(self, path: str, held: int) -> None:
        """Hold a directory, so that it does not count as abandoned."""

    def place_gone(self, path: str) -> None:
        """Release a directory."""

    def take_place(self, path: str) -> int | None:
        """Return the descriptor of an earlier process's directory, if any. The caller closes it."""
        return None


NO_PLACES = Places()
PATIENCE = 2.0
"""Seconds that a caller waits for the removal of a directory."""


class SessionPlace:
    """A directory that is created on demand, and counts as in use while this process lives.

    Attributes:
        path: Its path.
        made: Whether it exists.
    """

    def __init__(self, path: str, places: Places = NO_PLACES) -> None:
        """Set the path without creating anything.

        Args:
            path: Its path, unused or created by an earlier process.
            places: Preserves it for the next process, if it should outlive this one.
        """
        self.path = path
        self._places = places
        self._held = places.take_place(path)
        self.made = self._held is not None

    def make(self) -> None:
        """Create the directory if it is missing, for example because a cleaner of /tmp removed it.

        Raises:
            OSError: It cannot be created.
        """
        if self.made and not os.path.lexists(self.path):
            self.made = False
            if self._held is not None:
                os.close(self._held)
                self._held = None
        if not self.made:
            self._held = make_place(self.path)
            self.made = True
            self._places.place_made(self.path, self._held)

    def delete(self, held: int | None) -> None:
        """Delete the directory, and what belongs to it elsewhere. Called in a thread.

        Args:
            held: The descriptor that holds its lock.
        """
        remove_place(self.path)

    async def remove(self, patience: float = PATIENCE) -> None:
        """Remove the directory. A slow removal continues in a thread, which the program waits for at its exit.

        Args:
            patience: Seconds to wait.
        """
        if not self.made:
            return
        self.made = False
        held, self._held = self._held, None
        self._places.place_gone(self.path)
        loop = asyncio.get_running_loop()
        removed = asyncio.Event()

        def remove() -> None:
            self.delete(held)
            if held is not None:
                os.close(held)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
                loop.call_soon_threadsafe(removed.set)

        try:
            os.rmdir(self.path)  # usually it is empty
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
    """Replacements for a session's /tmp and home directory, where mounts are not available."""

    @property
    def home(self) -> str:
        return f"{self.path}/home"

    @property
    def tmp(self) -> str:
        """The directory for temporary files."""
        return f"{self.path}/tmp"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that point programs to these directories, and away from other settings."""
        # git fails if it may not read an existing /etc/gitconfig.
        return {"HOME": self.home, "TMPDIR": self.tmp, "GIT_CONFIG_NOSYSTEM": "1"}

    @property
    def mounts(self) -> tuple[Bind, ...]:
        """The mounts that make them writable for a session."""
        return tuple(Bind(path, path, "rw") for path in (self.home, self.tmp))

    def make(self) -> None:
        """Create missing directories."""
        super().make()
        for path in (self.home, self.tmp):
            os.makedirs(path, 0o700, exist_ok=True)

    async def remove(self, patience: float = PATIENCE) -> None:
        for path in (self.home, self.tmp) if self.made else ():
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(path)
        await super().remove(patience)


def new_workspace() -> SessionPlace:
    """Create a working directory for one session among temporary files. The caller removes it.

    Directories of killed programs are removed here.

    Raises:
        OSError: It cannot be created.
    """
    beginning = os.path.join(os.path.realpath(tempfile.gettempdir()), f"cellblock-work-{os.geteuid()}-")
    for abandoned in find_places(beginning):
        remove_abandoned(abandoned)
    place = SessionPlace(beginning + secrets.token_hex(8))
    place.make()
    return place
