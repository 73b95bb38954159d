"""``python -m cellblock.cluster.local NODES``: a Ray cluster of several nodes on this machine, for experiments and tests.

It prints the cluster's address when its nodes are up, and ends with the cluster on SIGTERM. Ray listens on all addresses of
this machine, so it requires a token, which is in this user's state directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from cellblock.common import config
from cellblock.common.extras import require_extra
from cellblock.errors import DaemonError, StateError

_END = 30.0
_FILE = "ray-cluster.json"
_OBJECTS = 80 * 1024 * 1024
"""Bytes of each node for Ray's objects, which sessions do not use: the minimum that Ray accepts."""


def main(arguments: list[str]) -> int:
    """Run a cluster until SIGTERM, in a forked process that outlives its starter. The argument is the number of nodes."""
    if os.fork():
        return 0
    from ray.cluster_utils import Cluster

    args: dict[str, Any] = {
        "num_cpus": os.cpu_count() or 1,
        "object_store_memory": _OBJECTS,
        "include_dashboard": False,
    }

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    cluster = Cluster(initialize_head=True, head_node_args=args)
    try:
        for _ in range(int(arguments[0]) - 1):
            cluster.add_node(**args)
        sys.stdout.write(f"{os.getpid()} {cluster.address}\n")
        sys.stdout.flush()
        os.close(1)
        while True:
            signal.pause()
    finally:
        cluster.shutdown()


def start_nodes(count: int) -> str:
    """Start a Ray cluster on this machine that outlives this program; return its address.

    Raises:
        StateError: A cluster already exists.
        DaemonError: The cluster cannot be started.
        UnsupportedError: Ray is not installed.
    """
    require_extra("ray", "sessions on a Ray cluster")
    path = _path()
    if (running := running_address()) is not None:
        raise StateError(f"a cluster already runs on this machine, at {running}: stop it with 'cellblock cluster stop'")
    token = _token()
    with contextlib.suppress(FileNotFoundError):
        token.unlink()
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    environment = {**config.environment(), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment.setdefault("RAY_worker_niceness", "0")
    log = path.with_suffix(".log")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "cellblock.cluster.local", str(count)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            cwd="/",
            env=environment,
        )
    assert process.stdout is not None
    with process.stdout as said:
        pid, _, address = said.readline().decode().strip().partition(" ")
    process.wait()
    if not address:
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] or ["it printed nothing"]
        raise DaemonError(f"Ray did not start: {last[-1][:300]} ({log})")
    path.write_text(json.dumps({"pid": int(pid), "began": _began(int(pid)), "address": address}))
    return address


def authenticate(address: str) -> None:
    """Make Ray send the token of the cluster started by `start_nodes`, if the address is that cluster's."""
    own = running_address()
    if own is not None and address in ("auto", own) and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(_token())
        if "ray" in sys.modules:  # Ray has already read its settings, and has no public function to reload them
            with contextlib.suppress(ImportError, AttributeError):
                from ray._raylet import Config  # type: ignore[attr-defined,unused-ignore]

                Config.initialize("")


def running_address() -> str | None:
    """Return the address of the cluster started by `start_nodes`, or None."""
    found = _running()
    return None if found is None else str(found["address"])


def stop_nodes() -> bool:
    """End the cluster started by `start_nodes`; return whether there was one."""
    found = _running()
    if found is None:
        return False
    os.kill(found["pid"], signal.SIGTERM)
    deadline = time.monotonic() + _END
    while _running() is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    if _running() is not None:  # Ray would wait for nodes that were already ended
        os.kill(found["pid"], signal.SIGKILL)
    _path().unlink(missing_ok=True)
    return True


def _token() -> Path:
    return _path().with_suffix(".token")


def _path() -> Path:
    directory = config.state_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory / _FILE


def _running() -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        found: dict[str, Any] = json.loads(_path().read_text())
        if _began(found["pid"]) == found["began"] is not None:
            return found
    return None


def _began(pid: int) -> str | None:
    """Return when a process started, in the kernel's own units; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
