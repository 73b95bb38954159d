"""``python -m cellblock.daemon DIRECTORY READY``: the daemon itself, started by `daemon.starting`."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from cellblock.daemon.place import Place

_log = logging.getLogger("cellblock.daemon")
_LOG_BYTES, _LOG_FILES = 4 * 1024 * 1024, 3


def main(arguments: list[str]) -> int:
    """Run the daemon of a directory until it is told to end. If there is one already, end at once.

    Args:
        arguments: The state directory, and the number of a descriptor that is closed when connections are taken.
    """
    place, ready = Place(Path(arguments[0])), int(arguments[1])
    if os.fork():  # so that it is nobody's child to wait for
        return 0
    place.prepare()
    lock = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    os.set_inheritable(ready, False)
    handler = RotatingFileHandler(place.log, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("cellblock.sessions").setLevel(logging.WARNING)  # which say a line for each cell
    os.umask(0o077)
    try:
        asyncio.run(_serve(place, ready))
    except BaseException:
        _log.exception("the daemon failed")
        raise
    return 0


async def _serve(place: Place, ready: int) -> None:
    from cellblock.daemon.server import Server
    from cellblock.host import Host
    from cellblock.named.sessions import NamedSessions
    from cellblock.store.named import NamedStore

    store = NamedStore(place.directory)
    host = Host(isolate="none")  # each session says how it is to be isolated
    sessions = NamedSessions(host, store)
    server = Server(sessions)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.asked_to_end.set)
    listening = await loop.create_unix_server(server.connect, sock=place.listen(), backlog=1024)
    os.close(ready)
    _log.info("the daemon listens at %s", place.socket)
    try:
        await server.asked_to_end.wait()
    finally:
        listening.close()
        place.socket.unlink(missing_ok=True)
        await sessions.close()
        await host.close()
        for client in [*server.clients]:
            client.abort()
        _log.info("the daemon has ended")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
