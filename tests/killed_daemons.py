"""A chain of daemons in one directory, each killed at another point of an execution. Run as a program, for `test_faults`.

Usage: killed_daemons.py DIRECTORY MODE FIRST LAST STEP. Each daemon is a fork of this process. It goes on with the sessions of
the daemon before, and is killed at its own point, between FIRST and LAST, of the calls by which bytes and records move. The
client then asks the next daemon for the outcome, by the key of its request. Says a line of JSON for each execution.

MODE is ``wait`` or ``live``, or ``dead``: then the kernel is killed before the code is submitted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cellblock import __version__
from cellblock.errors import CellblockError, DaemonError, NotRunError
from cellblock.host.kernels.kernel import Kernel
from cellblock.launch.custody import custodian_client
from cellblock.operations.base import Request
from cellblock.operations.executions import Follow, Lookup, Submit
from cellblock.operations.sessions import Create, Destroy, End
from cellblock.service.daemon.client_connection import Client
from cellblock.service.daemon.daemon_connection import Connection
from cellblock.service.daemon.main import main as run_daemon
from cellblock.service.daemon.place import Place
from cellblock.service.store.writer import Writer
from cellblock.wire.frames import Frame
from fuses import Fuse, forked

CODE = """
with open('ran', 'a') as file:
    file.write({key!r} + ' ')
import os
print('one')
os.write(1, b'two\\n')
count = globals().get('count', 0) + 1
count
"""
WHO = b"import os; open('worker', 'w').write(str(os.getpid()))"
POINTS = ("splice", "sendfile", "pwrite", "pwritev")
CALLS = ((custodian_client, "send"), (Kernel, "_take"), (Kernel, "_end_cell"), (Writer, "_commit"), (Client, "_send"))
PATIENCE = 20.0


def fuse_of(point: int) -> Fuse:
    """Return a fuse that counts from the request whose key is the number of the point."""
    fuse = Fuse(point, *((os, name) for name in POINTS), *CALLS)
    take = Client._take

    def armed_take(this: Client, frame: Frame) -> None:
        fuse.armed = fuse.armed or (frame.header.get("fields") or {}).get("key") == str(point)
        take(this, frame)

    setattr(Client, "_take", armed_take)  # noqa: B010  # mypy knows no methods that are replaced
    return fuse


def start_daemon(place: Place, point: int) -> int:
    """Start a daemon, and return its process id. The one before has ended."""

    def run() -> None:
        fuse_of(point)
        run_daemon([str(place.directory)])

    return forked(run)


def connect(place: Place) -> Connection:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if (sock := place.connect()) is not None:
                return Connection(sock, __version__)
        except NotRunError:
            continue
        time.sleep(0.002)
    raise TimeoutError("no daemon")


def ask(connection: Connection, request: Request[Any], body: bytes = b"") -> Any:
    try:
        return connection.call(request, body)
    except CellblockError as error:
        return {"error": type(error).__name__}


def end(daemon: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(daemon, signal.SIGKILL)
    os.waitpid(daemon, 0)


def submit(connection: Connection, mode: str, key: str) -> bool:
    """Have code run; return whether the daemon has answered."""
    if mode == "dead":
        os.kill(int(Path("worker").read_text()), signal.SIGKILL)
    code = CODE.format(key=key).encode()
    try:
        if mode == "live":
            record = connection.call(Submit("one", key=key, live=True), code)
            for _ in connection.follow(Follow(record["id"])):
                pass
        else:
            connection.call(Submit("one", key=key, wait=True), code)
    except DaemonError:
        return connection.usable
    return True


def outcome(connection: Connection, key: str) -> dict[str, Any]:
    """Ask what has become of code, or have it run if it never came to a daemon."""
    code = CODE.format(key=key).encode()
    first, again = (ask(connection, Submit("one", key=key, wait=True), code) for _ in range(2))
    record = connection.call(Lookup(session="one", key=key))
    events = list(connection.follow(Follow(record["id"])))
    ran = Path("ran").read_text().split().count(key) if Path("ran").exists() else 0
    return {
        "outcome": first.get("status") or first["error"],
        "same": first == again,
        "value": first.get("return_value"),
        "output": sorted((first.get("output") or "").split()),
        "state": record["state"],
        "numbers": [event["seq"] for event in events],
        "kinds": [event["kind"] for event in events],
        "ran": ran,
    }


def main(directory: str, mode: str, first: str, last: str, step: str) -> None:
    place = Place(Path(directory))
    pid = start_daemon(place, 0)
    connection = connect(place)
    here = {"working_dir": os.getcwd(), "sandbox": False}
    connection.call(Create("one", options=here))
    connection.call(Submit("one", wait=True), WHO)
    end(pid)
    for point in range(int(first), int(last), int(step)):
        pid = start_daemon(place, point)
        connection = connect(place)
        answered = submit(connection, mode, str(point))
        end(pid)
        pid = start_daemon(place, 0)
        connection = connect(place)
        print(json.dumps({"point": point, "answered": answered, **outcome(connection, str(point))}), flush=True)
        connection.call(Submit("one", wait=True), WHO)
        end(pid)
    pid = start_daemon(place, 0)
    connection = connect(place)
    connection.call(Destroy("one"))
    connection.call(End())
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
