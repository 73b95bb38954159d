"""The Ray actor of one node: starts the node's daemon, reports to the director, and renews the lease."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from cellblock.cluster.cluster_options import DIRECTOR, NAMESPACE
from cellblock.cluster.node import Options, be_as_important
from cellblock.cluster.renewal import Renewal
from cellblock.common.version import __version__
from cellblock.errors import CellblockError, DaemonError, UnsupportedError
from cellblock.operations.sessions import Census
from cellblock.service.daemon.daemon_connection import Connection
from cellblock.service.daemon.lease import Lease, now
from cellblock.service.daemon.place import Place, is_held

_START = 30.0
_PAUSE = 1.0
"""Seconds between two reports, until a director says how many."""

_SCRUBBED = ("RAY_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED", "SPT_NOENV")
"""Beginnings of the names of variables that Ray sets for its workers."""

_OF_A_CLUSTER = {"CELLBLOCK_DAEMON_IDLE_TIMEOUT": "0", "CELLBLOCK_MAX_SESSIONS": "100000"}


class HostActor:
    """The supervisor of its node's daemon.

    Its state is disposable: if the actor dies, the sessions of its node end with it, and the next one starts over.
    """

    def __init__(self, name: str, address: str, version: str, credentials: str, options: dict[str, Any]) -> None:
        """Start the daemon.

        Args:
            name: The node's name, for people.
            address: The address to listen on.
            version: The director's version of cellblock.
            credentials: The cluster's certificate and key.
            options: The cluster's options (`ClusterOptions`).

        Raises:
            UnsupportedError: The node has another version of cellblock.
            DaemonError: The daemon cannot be started.
        """
        if version != __version__:
            raise UnsupportedError(
                f"it has cellblock {__version__}, and the director {version}: install the same on all nodes"
            )
        be_as_important()
        context = ray.get_runtime_context()
        self._ray_node = str(context.get_node_id())
        self._name = name
        self._seconds = float(options["lease"])
        base = Path(options["directory"] or tempfile.gettempdir()) / f"cellblock-nodes-{os.geteuid()}"
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = base.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise DaemonError(f"{base} must belong to this user alone, with the mode 0700")
        _end_earlier(base, self._ray_node[:12])
        self._mark = secrets.token_hex(4)
        directory = base / f"{self._ray_node[:12]}-{self._mark}"
        self._node = Options(
            directory=str(directory),
            address=address,
            port=int(options["port"]),
            mark=self._mark,
            raylet=_raylet(),
        )
        for made in (directory, self._node.state, self._node.workspaces):
            made.mkdir(mode=0o700)
        self._node.credentials.touch(mode=0o600)
        self._node.credentials.write_text(credentials)
        self._renewal = Renewal(Lease(self._node.lease), self._seconds)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cellblock.cluster.node", self._node.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            env=_environment(options["environment"]),
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line.isdigit():
            raise DaemonError(f"the node's program did not start (exit status {self._process.wait()})")
        self._port = int(line)
        self._address = address
        self._draining = False
        self._over = threading.Event()
        threading.Thread(target=self._look_after, name="cellblock-host", daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """Return the description of this host for the director."""
        return {
            "ray_node": self._ray_node,
            "name": self._name,
            "mark": self._mark,
            "address": self._address,
            "port": self._port,
            "draining": self._draining,
            "pids": {"actor": os.getpid(), "node": self._process.pid},
            "directory": self._node.directory,
        }

    def watch(self) -> None:
        """Wait for the end of this host. If the actor is killed, the call fails at once."""
        self._over.wait()

    def _look_after(self) -> None:
        """Renew the lease while the daemon answers and the director accepts it."""
        try:
            self._renew_until_the_end()
        finally:
            self._end()

    def _renew_until_the_end(self) -> None:
        connection: Connection | None = None
        director: Any = None
        last: dict[str, Any] | None = None
        told: list[str] | None = None
        pause = min(self._seconds / 10, _PAUSE)
        give_up = time.monotonic() + _START
        while self._process.poll() is None and time.monotonic() < give_up:
            began = time.monotonic()
            census, connection = self._look(connection)
            if census is not None:
                last, give_up = census, began + _START
            if last is not None:  # while its daemon restarts, a node creates no sessions, and loses none
                try:
                    director = director or ray.get_actor(DIRECTOR, namespace=NAMESPACE)
                    asked = now()
                    report = {**last, "names": None if last["names"] == told else last["names"]}
                    epoch = self._renewal.epoch
                    answer = ray.get(director.report.remote(self._mark, epoch, report), timeout=self._seconds)
                    outcome = self._renewal.answered(answer, asked)
                    if outcome == "lost":
                        return
                    if outcome == "join":  # the director knows nothing: look again, under its placements alone
                        last = told = None
                        ray.get(director.join.remote(self.describe()), timeout=self._seconds)
                        continue
                    if outcome == "older":
                        director = None
                    else:
                        told, pause = last["names"], answer["pause"]
                except Exception:  # many kinds, from Ray: the director has ended, or cannot be reached
                    director = None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(pause - (time.monotonic() - began), 0.02))

    def _look(self, connection: Connection | None) -> tuple[dict[str, Any] | None, Connection | None]:
        """Return the daemon's census, and the connection; None for both while the daemon restarts."""
        try:
            if connection is None or not connection.usable:
                connection = self._connect()
            if connection is None:
                return None, None
            census = connection.call(Census())
        except (CellblockError, OSError):
            return None, connection
        return census, connection

    def _connect(self) -> Connection | None:
        sock = Place(self._node.state).connect()
        return None if sock is None else Connection(sock, __version__)

    def _end(self) -> None:
        """End everything, and this process, so that Ray starts another one."""
        self._over.set()  # so that clients learn it now
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        _end_earlier(Path(self._node.directory).parent, self._ray_node[:12])
        os._exit(1)

    def drain(self, epoch: int, on: bool) -> None:
        """Record whether the node takes new sessions, for a director without state.

        Args:
            epoch: The number of the calling director.
            on: Whether the node is drained.

        Raises:
            ConflictError: A later director exists.
        """
        self._renewal.check(epoch)
        self._draining = on

    def stop(self, epoch: int) -> None:
        """End the daemon with its sessions, and wait for the end. The caller kills this actor.

        Raises:
            ConflictError: As `drain`.
        """
        self._renewal.check(epoch)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def _raylet() -> int:
    """Return the process id of the node's raylet, which started this worker; 0 if unknown."""
    pid = os.getppid()
    with suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet":
            return pid
    return 0


def _environment(more: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SCRUBBED)}
    return kept | _OF_A_CLUSTER | more


def _end_earlier(base: Path, node: str) -> None:
    """End leftovers of earlier hosts of a node. The directory is removed last, so a host without one has ended."""
    for directory in base.glob(f"{node}-*"):
        _wait_for_the_end(directory / "state")
        shutil.rmtree(directory, ignore_errors=True)


def _wait_for_the_end(state: Path) -> None:
    """End a daemon's custodian with all kernels. Wait for it and the daemon, by the locks that they hold."""
    from cellblock.launch.custody.custodian_client import Custodian

    for lock in ("daemon.lock", "custodian.lock"):
        deadline = time.monotonic() + 5.0
        while is_held(state / lock) and time.monotonic() < deadline:
            if lock == "custodian.lock":
                with suppress(CellblockError):
                    Custodian.connect(state).end()
            time.sleep(0.02)
        if is_held(state / lock):
            raise DaemonError(f"an earlier host of this node still runs: it holds {state / lock}")
