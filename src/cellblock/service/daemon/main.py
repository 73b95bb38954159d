"""``python -m cellblock.daemon DIRECTORY [READY [REMOTE]]``: the daemon itself, started by `daemon.starting` or by systemd."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import gc
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from io import FileIO
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.common import telemetry
from cellblock.errors import CellblockError
from cellblock.service.daemon.place import RESTART, Place

if TYPE_CHECKING:
    from cellblock.host import Host
    from cellblock.launch.custody.custodian_client import Custodian
    from cellblock.service.daemon.daemon_state import Server
    from cellblock.service.daemon.listening import Listening
    from cellblock.service.daemon.remote import Remote

_log = logging.getLogger("cellblock.daemon")
_LOG_BYTES, _LOG_FILES = 4 * 1024 * 1024, 3
_PATIENCE = 20.0
"""Seconds in which a daemon that ends must have ended, before the next one gives up."""

_YOUNG = 10_000
"""Objects that are made before the garbage collector looks for cycles among them. An execution's objects mostly end with it: a
collection after each 700, Python's default, took a tenth of the daemon's time."""

_TOLD = 4096
"""Bytes of an error that are reported: as many as fit into a pipe at once."""

_LAST = 4.0
"""Seconds in which kernels can end gracefully; then they end with the daemon."""

_PATIENCE_OF_A_NODE = 10.0
"""Seconds in which the next daemon of a cluster's node has to come: the node starts it at once."""

_DEATHS = 1.0
"""Seconds in which the deaths of kernels are noticed, if all have died."""


def main(arguments: list[str]) -> int:
    """Run the daemon of a directory until it has to end. If a daemon is already running, return at once.

    Args:
        arguments: The state directory, and the number of a descriptor that is closed when the daemon accepts connections.
            With the descriptor, the daemon detaches from its parent; otherwise it stays in the foreground. A cluster node
            adds its settings (`Remote.from_json`). A daemon that takes over also gets the descriptors of the lock and the
            socket (`handover.start_successor`).
    """
    place = Place(Path(arguments[0]))
    ready = os.fdopen(int(arguments[1]), "wb", buffering=0) if arguments[1:] and arguments[1] else None
    if ready is not None and os.fork():
        return 0
    try:
        left, listener = map(int, arguments[3].split(",")) if arguments[3:] else (None, None)
        for inherited in (left, listener):
            if inherited is not None:
                os.set_inheritable(inherited, False)
        if (lock := _take(place, left)) is None:
            return 0
        if ready is not None:
            os.set_inheritable(ready.fileno(), False)
        with telemetry.exporting("cellblock-daemon") as traced:
            if traced:
                logging.getLogger("cellblock.sessions").setLevel(logging.INFO)
            asyncio.run(_serve(place, lock, listener, ready, arguments[2] if arguments[2:] else ""))
    except CellblockError as error:  # its message is enough; a traceback would only hide it
        _log.error("%s", error)
        _tell(ready, str(error))
        return 1
    except BaseException as error:  # only the log can report it
        _log.exception("the daemon failed")
        _tell(ready, f"{type(error).__name__}: {error}")
        raise
    return 0


def _take(place: Place, left: int | None) -> int | None:
    """Lock a directory, and open the log; return None if a daemon already runs there.

    Args:
        place: The directory.
        left: The descriptor of the lock, if the previous daemon passed it on.

    Raises:
        DaemonError: The directory cannot be used.
    """
    place.prepare()
    try:
        if (lock := _lock(place) if left is None else left) is None:
            return None
        _write_pid(lock)
        handler = RotatingFileHandler(place.log, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8")
    except OSError as error:
        raise place.unusable(error) from error
    handler.addFilter(lambda record: record.name != "cellblock.sessions" or record.levelno >= logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("cellblock.sessions").setLevel(logging.WARNING)  # a line for each cell is too much for a file
    os.umask(0o077)
    return lock


def _write_pid(lock: int) -> None:
    """Write the process id into the lock file. Without the socket, no one else could tell which process to end."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def _tell(ready: FileIO | None, why: str) -> None:
    """Report a failed start to the parent process if it still waits; on a full disk, the log is empty."""
    if ready is not None and not ready.closed:
        with suppress(OSError):  # it has ended
            ready.write(os.fsencode(why)[:_TOLD])


def _lock(place: Place) -> int | None:
    """Lock a directory; return None if a daemon accepts connections there. Wait for a daemon that is ending."""
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
            time.sleep(0.01)  # the owner is ending, and no longer listens
        else:
            return lock


def _custodian(place: Place, patience: float) -> tuple[Custodian, bool]:
    """Return the custodian, and whether an incompatible one was ended with its kernels.

    Args:
        place: The daemon's directory.
        patience: Seconds that the custodian waits for the next daemon if this one is killed.
    """
    from cellblock.host.survival.keeping import can_continue
    from cellblock.launch.custody.custodian_client import Custodian

    custodian = Custodian.connect(place.directory, patience=patience)
    if can_continue(custodian):
        return custodian, False
    custodian.end()
    return Custodian.connect(place.directory, patience=patience), True


async def _serve(place: Place, lock: int, listener: int | None, ready: FileIO | None, remote: str) -> None:
    from cellblock.common.threads import Threads
    from cellblock.service import settings
    from cellblock.service.daemon.client_connection import Client
    from cellblock.service.daemon.handover import Handover
    from cellblock.service.daemon.listening import Listening
    from cellblock.service.daemon.remote import Remote
    from cellblock.service.daemon.shutdown import until_shutdown

    # As many as Python's default: most of them wait for a disk.
    asyncio.get_running_loop().set_default_executor(Threads(min(32, (os.cpu_count() or 1) + 4), "cellblock"))
    handover = Handover()
    cluster = Remote.from_json(remote) if remote else None
    server, host = await _open(place, cluster)
    gc.freeze()  # loaded code stays: garbage collections need not look at it
    gc.set_threshold(_YOUNG, 20, 20)
    sock, listening = await _listen(server, place, listener, cluster)
    if server.custodian is not None and cluster is None:
        server.handover = handover
        asyncio.get_running_loop().add_signal_handler(RESTART, setattr, server, "asked_to_restart", True)

    def listen_again() -> None:
        nonlocal sock
        sock = place.listen()
        listening[0].close()
        listening[0] = Listening(sock, functools.partial(Client, server))

    if ready is not None:
        ready.close()
    _log.info("the daemon listens at %s", place.socket)
    settling = None
    if cluster is not None:
        from cellblock.service.daemon.moving import settle_arrivals

        settling = asyncio.create_task(settle_arrivals(server, Path(cluster.credentials)))
    try:
        await until_shutdown(server, place, lock, settings.current().daemon_idle_timeout or None, listen_again)
    finally:
        server.asked_to_end.set()
        if settling is not None:
            settling.cancel()
        if server.handing_over:
            _hand_over(server, place, lock, sock)
        for one in listening:
            one.close()
        place.leave(lock)
        await _end(server, host)
        _log.info("the daemon has ended")


async def _open(place: Place, cluster: Remote | None) -> tuple[Server, Host]:
    """Open the store, and continue the sessions that the custodian holds."""
    from cellblock.host import Host
    from cellblock.launch.custody.custodian_client import PATIENCE
    from cellblock.service import settings
    from cellblock.service.daemon.daemon_state import Server
    from cellblock.service.daemon.lease import Lease
    from cellblock.service.named.limits import NamedLimits
    from cellblock.service.named.named_sessions import NamedSessions
    from cellblock.service.store.named import NamedStore

    wanted = settings.current()
    limits = NamedLimits(sessions=wanted.max_sessions, memory=wanted.max_memory << 20 or None, waiting=wanted.max_waiting)
    store = NamedStore(place.directory, wanted.history_days * 86_400)
    patience = PATIENCE if cluster is None else _PATIENCE_OF_A_NODE
    custodian, others_ended = _custodian(place, patience) if sys.platform == "linux" else (None, False)
    host = Host(isolate="none", custodian=custodian)  # each session sets its own isolation
    placed = {} if cluster is None else {"mark": cluster.mark, "workspaces": Path(cluster.workspaces)}
    sessions = NamedSessions(host, store, limits, **placed)  # type: ignore[arg-type]  # each has its own type
    if others_ended:
        sessions.note_lost("the kernels of another version of cellblock, which was killed, were ended with their variables")
    if custodian is not None:
        await sessions.adopt()
    telemetry.measure_memory(lambda: sessions.memory)
    lease = None if cluster is None else Lease(Path(cluster.lease))
    credentials = None if cluster is None else Path(cluster.credentials)
    server = Server(sessions, custodian=custodian, lease=lease, credentials=credentials)
    if custodian is not None:
        custodian.watch(server.asked_to_end.set)
    return server, host


async def _listen(
    server: Server, place: Place, listener: int | None, cluster: Remote | None
) -> tuple[socket.socket, list[Listening | asyncio.Server]]:
    """Accept connections, and handle signals.

    Args:
        server: The state shared by all clients.
        place: The daemon's directory.
        listener: The descriptor of the listening socket, if the previous daemon passed it on.
        cluster: The settings of a cluster node, if this is one.
    """
    from cellblock.service.daemon.client_connection import Client
    from cellblock.service.daemon.listening import Listening

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.asked_to_end.set)
    try:
        sock = place.listen() if listener is None else socket.socket(fileno=listener)
        sock.setblocking(False)
        listening: list[Listening | asyncio.Server] = [Listening(sock, functools.partial(Client, server))]
        if cluster is not None and server.lease is not None:
            listening.append(await cluster.serve(server, server.lease))
    except BaseException:
        if server.custodian is not None and not server.sessions.kernels:
            server.custodian.end()  # nothing in it can be continued by a next daemon
        raise
    return sock, listening


def _hand_over(server: Server, place: Place, lock: int, sock: socket.socket) -> None:
    """Let the next daemon take over. This process ends as in a crash, and kernels and running cells continue.

    If the next daemon cannot be started, the next client starts one.
    """
    from cellblock.service.daemon.handover import start_successor

    server.sessions.store.close()
    try:
        start_successor(place.directory, lock, sock.fileno())
        why = "'cellblock daemon restart' asked for it" if server.asked_to_restart else "cellblock was reinstalled"
        _log.info("the next daemon takes over %d sessions: %s", server.sessions.kernels, why)
    except OSError as error:
        _log.error("the next daemon cannot be started: %s", error)
    logging.shutdown()
    os._exit(0)


async def _end(server: Server, host: Host) -> None:
    """End all kernels and connections, cleanly if the time limit allows it."""
    sessions, custodian = server.sessions, server.custodian
    try:
        if custodian is None or not custodian.gone:
            await sessions.save_last()
        async with asyncio.timeout(_LAST):
            if custodian is not None and custodian.gone:
                # The kernels have died with it, and their cells must report that: no one interrupted them.
                await sessions.hear_out(timeout=_DEATHS)
            await sessions.end_kernels()
            for client in [*server.clients]:
                client.abort()  # the client sends further requests to the next daemon
            await asyncio.sleep(0.01)  # until no one uses the store
            await sessions.close()
            await host.close()
    except TimeoutError:
        _log.warning("kernels did not end in time: they end with the daemon")
        sessions.store.close()
    finally:
        if custodian is not None:
            custodian.end()
    for client in [*server.clients]:
        client.abort()
