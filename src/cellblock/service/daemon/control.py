"""Management of the daemon: status, start, stop, and the systemd unit."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from cellblock.common import config
from cellblock.common.database import Database
from cellblock.common.version import __version__
from cellblock.errors import CellblockError, DaemonError, NotRunError, StoreError
from cellblock.operations.sessions import About, End
from cellblock.service.daemon.daemon_connection import Connection, open_if_running, silent
from cellblock.service.daemon.place import RESTART, Place
from cellblock.service.daemon.starting import open_connection

_PATIENCE, _LOOK = 30.0, 0.1
UNIT = "cellblock.service"


def start(place: Place | None = None) -> dict[str, Any]:
    """Start the daemon if none is running; return its status (`About`).

    Raises:
        DaemonError: The daemon cannot be started.
    """
    return _about(open_connection(place or Place()))


def status() -> dict[str, Any] | None:
    """Return the daemon's status (`About`); None if none is running.

    Raises:
        DaemonError: The daemon cannot be reached, or has another version.
    """
    with suppress(NotRunError):  # it has just ended
        connection = open_if_running(Place())
        return None if connection is None else _about(connection)
    return None


def problems() -> list[str]:
    """Return problems of the daemon, and of the records of decisions, servers and tokens, one sentence each."""
    try:
        about = status()
    except CellblockError as error:
        found = [str(error)]
    else:
        found = [] if about is None else list(about["problems"])
    directory = Place().directory
    for name in ("approvals.db", "servers.db", "tokens.db"):
        if not (directory / name).exists():
            continue
        try:
            with closing(Database(directory, name, "")) as database:
                database.check()
        except StoreError as error:
            found.append(str(error))
    return found


def stop(place: Place | None = None, *, keep: bool = False) -> bool:
    """End the daemon, and wait until it has ended.

    Args:
        place: The daemon's directory.
        keep: Whether its sessions stay listed; their kernels end in any case.

    Returns:
        Whether a daemon was running.

    Raises:
        DaemonError: The daemon does not end.
    """
    place = place or Place()
    sock = place.connect()
    if sock is not None:
        with suppress(NotRunError):  # it is ending
            connection = Connection(sock, __version__, any_daemon=True, patience=_PATIENCE)
            connection.call(End(keep))
            connection.close()
    elif (pid := place.pid) is not None:  # its socket was removed
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    else:
        return False
    deadline = time.monotonic() + _PATIENCE
    while place.is_held():
        if time.monotonic() > deadline:
            raise DaemonError(silent(place.pid, _PATIENCE))
        time.sleep(0.01)  # the daemon releases its lock last, and waiting for a lock has no time limit
    return True


def restart() -> dict[str, Any]:
    """Replace the daemon with a new one; return the new one's status (`About`).

    A daemon of this version hands over all sessions and running code. For a daemon of another version, durable sessions are
    saved and resumed. Other sessions stay listed, without their variables.

    Raises:
        DaemonError: The daemon does not respond, or a restart now would lose something.
        StateError: A durable session cannot be saved now.
    """
    place = Place()
    if (sock := place.connect()) is not None:
        connection = Connection(sock, __version__, any_daemon=True, patience=_PATIENCE)
        before = connection.daemon
        connection.close()
        if before.get("version") == __version__:
            os.kill(before["pid"], RESTART)
            return _successor(before["pid"])
        stop(place, keep=True)
    return start(place)


def _successor(before: int) -> dict[str, Any]:
    """Return the status of the daemon that took over from another one."""
    deadline = time.monotonic() + _PATIENCE
    about: dict[str, Any] | None = None
    while time.monotonic() < deadline:
        if (about := status()) is not None and about["pid"] != before:
            return about
        time.sleep(_LOOK)
    why = "" if about is None else f": {'; '.join(about['problems'])}"
    raise DaemonError(f"the daemon did not hand over within {_PATIENCE:g} s{why}")


def _about(connection: Connection) -> dict[str, Any]:
    try:
        about: dict[str, Any] = connection.call(About())
    finally:
        connection.close()
    return about


def systemd_unit(place: Place) -> str:
    """Return a systemd user unit for the daemon of a directory, so that sessions can have control groups.

    The unit kills only the daemon (``KillMode=process``). The custodian and the kernels must outlive a crashed daemon, so
    that the next daemon can adopt them. A daemon that ends regularly ends them itself.
    """
    command = " ".join(map(_quoted, (sys.executable, "-m", "cellblock.daemon", str(place.directory))))
    return f"""\
[Unit]
Description=cellblock: sandboxed Python sessions
Documentation=man:systemd.service(5)

[Service]
Type=exec
ExecStart={command}
Environment={_quoted(f"CELLBLOCK_HOME={place.directory}")}
Restart=on-failure
RestartSec=1
KillMode=process
TimeoutStopSec=15
Delegate=yes
DelegateSubgroup=main
UMask=0077

[Install]
WantedBy=default.target
"""


def install_unit() -> Path:
    """Write the unit to the user's systemd directory, and return its path. systemd does not load it automatically.

    ``systemctl --user daemon-reload`` and ``systemctl --user enable --now cellblock`` start the daemon.

    Raises:
        DaemonError: The unit cannot be written.
    """
    home = config.environment().get("XDG_CONFIG_HOME", "")
    path = (Path(home) if os.path.isabs(home) else Path.home() / ".config") / "systemd" / "user" / UNIT
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(systemd_unit(Place()))
    except OSError as error:
        raise DaemonError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _quoted(text: str) -> str:
    """Quote a word for systemd, which gives ``%`` and ``$`` meanings."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != text or shlex.quote(text) != text else text
