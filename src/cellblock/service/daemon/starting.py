"""Starts the daemon on first use."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from contextlib import suppress
from socket import socket

from cellblock.common.version import __version__
from cellblock.errors import DaemonError, NotRunError
from cellblock.service.daemon.daemon_connection import ANSWER, Connection
from cellblock.service.daemon.place import Place

_PATIENCE, _TRIES = 30.0, 5


def connect_or_start(place: Place) -> socket:
    """Connect to the daemon, and start it if needed. Any number of processes may do this concurrently.

    Raises:
        DaemonError: The daemon cannot be started; the message has the reason or the last lines of the log.
    """
    if (found := place.connect()) is not None:
        return found
    place.prepare()
    # Of all processes that found no daemon, one starts it; the others wait for the lock, and then find it.
    try:
        lock = os.open(place.starting, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise place.unusable(error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := place.connect()) is not None:
            return found
        return _start(place)
    finally:
        os.close(lock)


def open_connection(place: Place) -> Connection:
    """Connect to the daemon, and start it if needed. If a daemon is just ending, wait for its end.

    Raises:
        DaemonError: The daemon cannot be started, has another version, or does not respond.
    """
    for _ in range(_TRIES):
        with suppress(NotRunError):
            return Connection(connect_or_start(place), __version__, patience=ANSWER)
    raise DaemonError(f"the daemon ended right after it started{last_words(place)}")


def _start(place: Place) -> socket:
    """Start a daemon that outlives this process, and wait until it accepts connections."""
    ready, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "cellblock.daemon", str(place.directory), str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs],
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        raise DaemonError(f"the daemon cannot be started: {error}") from error
    finally:
        os.close(theirs)
    with os.fdopen(ready, "rb") as pipe:
        why = os.fsdecode(pipe.read())  # the other end is closed when the daemon accepts connections, or ends
    process.wait()  # it has forked: the daemon is not our child
    if why:
        raise DaemonError(f"the daemon did not start: {why} ({place.log})")
    deadline = time.monotonic() + _PATIENCE
    while (found := place.connect()) is None:
        if not place.is_held() or time.monotonic() > deadline:
            raise DaemonError(f"the daemon did not start{last_words(place)}")
        time.sleep(0.005)
    return found


def last_words(place: Place) -> str:
    """Return the end of the daemon's log for a message; empty if none. A one-line error is returned alone."""
    try:
        data = place.log.read_bytes()[-2000:]
    except OSError:
        return ""
    lines = data.decode("utf-8", "replace").strip().splitlines()[-3:]
    if lines and " ERROR cellblock.service.daemon: " in lines[-1]:
        return f": {lines[-1].partition(' ERROR cellblock.service.daemon: ')[2]} ({place.log})"
    return f"; the last lines of {place.log}:\n" + "\n".join(lines) if lines else f"; see {place.log}"
