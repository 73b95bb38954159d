"""Handover of sessions to a new daemon after the installation was replaced, for example by pip.

Code that this process has not loaded may be gone, so it can start no more kernels. A new daemon takes over the sessions as
after a crash. The old daemon chooses a moment when nothing in progress would be lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cellblock.common import version
from cellblock.common.version import __version__

_log = logging.getLogger("cellblock.daemon")

_PATIENCE = 30.0
"""Seconds for the new installation to say what it can continue."""

ASK_AGAIN, ASK_RARELY = 2.0, 60.0
"""Seconds after which the new installation is asked again, if it could not continue: it may be complete now."""

_MOST_NAMED = 5
_ASK = "from cellblock.service.daemon.handover import describe; print(describe())"


def describe() -> str:
    """Return what a daemon of this code can continue, as JSON.

    Another version of the code runs this function, and compares.
    """
    from cellblock.host.survival.keeping import FORMAT
    from cellblock.wire.frames import VERSION

    return json.dumps({"version": __version__, "sessions": FORMAT, "wire": VERSION})


def _installed_files() -> list[str]:
    """Return the files that every installation of cellblock or the interpreter rewrites."""
    import importlib.metadata  # late: clients do not need it

    files = [version.__file__, sys.executable, os.path.join(sys.prefix, "pyvenv.cfg")]
    with suppress(importlib.metadata.PackageNotFoundError):
        one = importlib.metadata.distribution("cellblock")
        files.append(str(one.locate_file(f"cellblock-{one.version}.dist-info/RECORD")))
    return files


def _identity_of(files: Sequence[str]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return a value that changes with every installation.

    Raises:
        OSError: The value cannot be determined now.
    """
    # In a virtual environment, both the interpreter's link and its target count.
    return (*map(_identity, files), _identity(sys.executable, follow=False))


def _identity(path: str, *, follow: bool = True) -> tuple[int, int, int] | None:
    """Return the identity of a file; None if it does not exist.

    Raises:
        OSError: The identity cannot be determined now.
    """
    try:
        found = os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Handover:
    """Detects a replaced installation, and decides whether sessions can be handed over now.

    Attributes:
        problem: A message for users; empty if the installation is unchanged.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._files = _installed_files()
        self._began_with = _identity_of(self._files)
        self._asked_of: tuple[object, ...] = ()
        self._asked = 0.0
        self._refusal = ""
        self._asking = asyncio.Lock()

    @property
    def replaced(self) -> bool:
        """Whether the installation was replaced."""
        try:
            return _identity_of(self._files) != self._began_with
        except OSError:  # a temporary condition
            return False

    async def possible(self, tied: Sequence[str], patience: float) -> bool:
        """Return whether a daemon of the new installation can take over everything now. Otherwise, set `problem`.

        Args:
            tied: Why sessions and requests cannot be handed over now, one sentence each.
            patience: Seconds until the new installation is asked again after a refusal.
        """
        if not self.replaced:
            self.problem = ""
            return False
        async with self._asking:
            refusal = await self._ask(patience)
        if refusal:
            self._tell(
                f"{refusal}. Running sessions continue, but new ones cannot start. 'cellblock daemon stop' ends the daemon "
                "and all sessions with their variables: first save what you need, or install the earlier version again"
            )
            return False
        if tied:
            more = f", and {len(tied) - _MOST_NAMED} more" if len(tied) > _MOST_NAMED else ""
            self._tell(
                "a new daemon takes over all sessions, and starts new ones, as soon as that loses nothing. It "
                f"waits for: {'; '.join(tied[:_MOST_NAMED])}{more}"
            )
            return False
        return True

    def _tell(self, what: str) -> None:
        problem = f"cellblock was reinstalled, or its Python was replaced, after the daemon started: {what}"
        if problem != self.problem:
            _log.warning("%s", problem)
        self.problem = problem

    async def _ask(self, patience: float) -> str:
        """Return why the new installation cannot continue the current sessions; empty if it can."""
        now = _identity_of(self._files)
        if now != self._asked_of or (self._refusal and time.monotonic() - self._asked > patience):
            refusal = await _refusal()
            if _identity_of(self._files) != now:
                return "the new installation is not complete yet"
            self._refusal, self._asked_of, self._asked = refusal, now, time.monotonic()
        return self._refusal


async def _refusal() -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _ASK, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
    except OSError as error:
        return f"{sys.executable} cannot be started ({error.strerror})"
    try:
        async with asyncio.timeout(_PATIENCE):
            said, errors = await process.communicate()
    except TimeoutError:
        return f"{sys.executable} does not answer"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        successor: dict[str, Any] = dict(json.loads(said))
    except (TypeError, ValueError):
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return f"the new installation does not start, or is another version ({last[:200]})"
    own = json.loads(describe())
    if any(successor.get(key) != own[key] for key in ("sessions", "wire")):
        return f"the new version, {successor.get('version')}, cannot continue sessions of this version, {__version__}"
    return ""


def start_successor(directory: Path, lock: int, listener: int) -> None:
    """Start the next daemon, which inherits the lock and the socket, so that new clients wait for it.

    Args:
        directory: The state directory.
        lock: The descriptor of the daemon's lock.
        listener: The descriptor of the listening socket.

    Raises:
        OSError: The daemon cannot be started.
    """
    subprocess.Popen(
        [sys.executable, "-m", "cellblock.daemon", str(directory), "", "", f"{lock},{listener}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lock, listener],
        start_new_session=True,
        cwd="/",
    )
