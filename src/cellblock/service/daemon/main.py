"""``python -m cellblock.daemon DIRECTORY [READY]``: the daemon itself, started by `daemon.starting` or by systemd."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from io import FileIO
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError
from cellblock.service.daemon.place import Place

if TYPE_CHECKING:
    from cellblock.launch.custody.client import Custodian

_log = logging.getLogger("cellblock.daemon")
_LOG_BYTES, _LOG_FILES = 4 * 1024 * 1024, 3
_PATIENCE = 20.0
"""Seconds in which a daemon that ends must have ended, before the next one gives up."""

_TOLD = 4096
"""Bytes of an error that are told: what fits into a pipe at once."""

_LAST = 4.0
"""Seconds in which kernels are ended in good order; then they end with the daemon."""

_DEATHS = 1.0
"""Seconds in which the deaths of kernels are heard of, if all have died."""


def main(arguments: list[str]) -> int:
    """Run the daemon of a directory until it is told to end. If there is one already, end at once.

    Args:
        arguments: The state directory, and the number of a descriptor that is closed when connections are taken. With it, the
            daemon leaves the process that started it; without it, the daemon stays in the foreground.
    """
    place = Place(Path(arguments[0]))
    ready = os.fdopen(int(arguments[1]), "wb", buffering=0) if arguments[1:] else None
    if ready is not None and os.fork():
        return 0
    try:
        if (lock := _take(place)) is None:
            return 0
        if ready is not None:
            os.set_inheritable(ready.fileno(), False)
        asyncio.run(_serve(place, lock, ready))
    except CellblockError as error:  # its message is enough; a traceback would only hide it
        _log.error("%s", error)
        _tell(ready, str(error))
        return 1
    except BaseException as error:  # the log is the only place where anybody could read of it
        _log.exception("the daemon failed")
        _tell(ready, f"{type(error).__name__}: {error}")
        raise
    return 0


def _take(place: Place) -> int | None:
    """Take a directory, and begin the log; None if there is a daemon already.

    Raises:
        DaemonError: The directory cannot be used.
    """
    place.prepare()
    try:
        if (lock := _lock(place)) is None:
            return None
        handler = RotatingFileHandler(place.log, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8")
    except OSError as error:
        raise place.unusable(error) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("cellblock.sessions").setLevel(logging.WARNING)  # which say a line for each cell
    os.umask(0o077)
    return lock


def _tell(ready: FileIO | None, why: str) -> None:
    """Tell the process that starts this one why it cannot, if it still waits: on a full disk, the log is empty."""
    if ready is not None and not ready.closed:
        with suppress(OSError):  # it has ended
            ready.write(os.fsencode(why)[:_TOLD])


def _lock(place: Place) -> int | None:
    """Take the lock of a directory; None if there is a daemon that takes connections. One that ends is waited for."""
    lock = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if (found := place.connect()) is not None:
                found.close()
                return None
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)  # the one that holds it is ending, and does not listen any more
        else:
            return lock


def _custodian(place: Place) -> tuple[Custodian, bool]:
    """Return the custodian, and whether one was ended whose kernels cannot be continued: those of another version."""
    from cellblock.host.survival.keeping import can_continue
    from cellblock.launch.custody.client import Custodian

    custodian = Custodian.connect(place.directory)
    if can_continue(custodian):
        return custodian, False
    custodian.end()
    return Custodian.connect(place.directory), True


async def _serve(place: Place, lock: int, ready: FileIO | None) -> None:
    from cellblock.common.threads import Threads
    from cellblock.host import Host
    from cellblock.service import settings
    from cellblock.service.daemon.client import Client
    from cellblock.service.daemon.life import until_the_end
    from cellblock.service.daemon.server import Server
    from cellblock.service.named.limits import NamedLimits
    from cellblock.service.named.sessions import NamedSessions
    from cellblock.service.store.named import NamedStore

    # As many as Python would use, which most of them wait for a disk.
    asyncio.get_running_loop().set_default_executor(Threads(min(32, (os.cpu_count() or 1) + 4), "cellblock"))
    wanted = settings.current()
    limits = NamedLimits(sessions=wanted.max_sessions, memory=wanted.max_memory << 20 or None, waiting=wanted.max_waiting)
    store = NamedStore(place.directory)
    custodian, others_ended = _custodian(place) if sys.platform == "linux" else (None, False)
    host = Host(isolate="none", custodian=custodian)  # each session says how it is to be isolated
    sessions = NamedSessions(host, store, limits)
    if others_ended:
        sessions.note_lost("the kernels of another version of cellblock, which was killed, were ended with their variables")
    if custodian is not None:
        await sessions.adopt()
    server = Server(sessions, custodian=custodian)
    if custodian is not None:
        custodian.watch(server.asked_to_end.set)
    gc.freeze()  # what is loaded stays: a collection need not look at it
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.asked_to_end.set)
    try:
        listening = await loop.create_unix_server(lambda: Client(server), sock=place.listen(), backlog=1024)
    except BaseException:
        if custodian is not None and not sessions.kernels:
            custodian.end()  # it holds nothing that a next daemon could continue
        raise
    if ready is not None:
        ready.close()
    _log.info("the daemon listens at %s", place.socket)
    try:
        await until_the_end(server, place, lock, wanted.daemon_idle_timeout or None)
    finally:
        server.asked_to_end.set()
        listening.close()
        place.leave(lock)
        try:
            if custodian is None or not custodian.gone:
                await sessions.save_last()
            async with asyncio.timeout(_LAST):
                if custodian is not None and custodian.gone:
                    # The kernels have died with it, and their cells are to say so: nobody has interrupted them.
                    await sessions.hear_out(timeout=_DEATHS)
                await sessions.end_kernels()
                for client in [*server.clients]:
                    client.abort()  # what it asks from now on, it asks the next daemon
                await asyncio.sleep(0.01)  # so that nobody uses the store any more
                await sessions.close()
                await host.close()
        except TimeoutError:
            _log.warning("kernels did not end in time: they end with the daemon")
            store.close()
        finally:
            if custodian is not None:
                custodian.end()
        for client in [*server.clients]:
            client.abort()
        _log.info("the daemon has ended")
