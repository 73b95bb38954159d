"""``python -m cellblock.cluster.node``: runs the daemon of one cluster node, and always ends all of its processes.

It is a fresh process with one thread and without the settings of Ray's workers. Its standard input is a pipe from the
node's `HostActor`. When the pipe closes, because the actor has ended or was killed, everything ends here. It also ends with
the node's raylet, which actors outlive for a while. It finally ends when the lease in `Lease` expires, because the director
may then give the names of these sessions to others. A daemon that dies is restarted, and continues its sessions.

The argument is JSON (`Options`). When the daemon is about to listen, the process prints a line with the port.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cellblock.service.daemon.lease import Lease, now

_LOOK = 0.25
"""Seconds between two looks at the lease: poll's clock stands still while the machine sleeps."""

_MOST_STARTS, _IN = 5, 60.0
"""How often the daemon is started within how many seconds before the node gives up."""

_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a node.

    Attributes:
        directory: A directory for all files of the node, created and removed with it.
        address: The address to listen on.
        port: The port; 0 for any free port.
        mark: The suffix of its sessions' ids.
        raylet: The process id of the node's raylet, with which the node ends; 0 if unknown.
    """

    directory: str
    address: str
    port: int
    mark: str
    raylet: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def state(self) -> Path:
        """The daemon's directory."""
        return Path(self.directory) / "state"

    @property
    def lease(self) -> Path:
        """The file of the lease."""
        return Path(self.directory) / "lease"

    @property
    def credentials(self) -> Path:
        """The file with the certificate."""
        return Path(self.directory) / "credentials.pem"

    @property
    def workspaces(self) -> Path:
        """The parent directory of session workspaces."""
        return Path(self.directory) / "workspaces"


def main(arguments: list[str]) -> int:
    """Run a node until it has to end; return the reason as an exit status."""
    options = Options(**json.loads(arguments[0]))
    _leave_ray()
    lease = Lease(options.lease)
    sock = socket.socket(socket.AF_INET6 if ":" in options.address else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((options.address, options.port))
    sock.listen(1024)
    sys.stdout.write(f"{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    try:
        return _Node(options, lease, sock).run()
    finally:
        end_all_below()
        shutil.rmtree(options.directory, ignore_errors=True)


def _leave_ray() -> None:
    """Undo the changes of a Ray worker to this process, and become a subreaper: the parent of all orphans below it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT, which interrupts cells
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # ignore the terminal's signals
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
    be_as_important()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.chdir("/")


def be_as_important() -> None:
    """Reset the priority: Ray gives its workers a niceness of 15, and sessions would starve on a busy node.

    Only root may reset it. For other users, set `RAY_worker_niceness=0` in the environment of Ray's nodes.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


class _Node:
    def __init__(self, options: Options, lease: Lease, sock: socket.socket) -> None:
        self._options = options
        self._lease = lease
        self._sock = sock
        self._starts: list[float] = []
        self._raylet = -1
        if options.raylet:
            with suppress(ProcessLookupError):
                self._raylet = os.pidfd_open(options.raylet)

    def run(self) -> int:
        """Return why the node ended: 0 on request, 2 if the lease expired, 3 if the daemon keeps failing."""
        while True:
            began = time.monotonic()
            self._starts = [start for start in self._starts if began - start < _IN]
            if len(self._starts) >= _MOST_STARTS:
                return 3
            self._starts.append(began)
            daemon = self._start()
            try:
                if (why := self._watch(daemon)) is not None:
                    return why
            finally:
                daemon.kill()
                daemon.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        options = self._options
        remote = {
            "descriptor": self._sock.fileno(),
            "credentials": str(options.credentials),
            "lease": str(options.lease),
            "mark": options.mark,
            "workspaces": str(options.workspaces),
        }
        argv = [sys.executable, "-m", "cellblock.daemon", str(options.state), "", json.dumps(remote)]
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._sock.fileno()],
            start_new_session=True,
            preexec_fn=_as_daemon,  # this process has one thread
        )

    def _watch(self, daemon: subprocess.Popen[bytes]) -> int | None:
        """Wait for an event. Return the exit code if everything must end, or None if only the daemon has ended."""
        ended = os.pidfd_open(daemon.pid)
        try:
            poll = select.poll()
            poll.register(0, select.POLLIN)  # closes with the actor
            poll.register(ended, select.POLLIN)
            if self._raylet >= 0:
                poll.register(self._raylet, select.POLLIN)
            while True:
                ready = {descriptor for descriptor, _ in poll.poll(_LOOK * 1000)}
                if self._raylet in ready or (0 in ready and not os.read(0, 4096)):
                    return 0
                if self._lease.until and now() >= self._lease.until:
                    return 2
                if ended in ready:
                    return None
                while _reaped_orphan(daemon.pid):
                    pass
        finally:
            os.close(ended)


def _as_daemon() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _reaped_orphan(daemon: int) -> bool:
    """Reap an ended child other than the daemon, if there is one."""
    for pid in _children():
        if pid != daemon:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return True
    return False


def end_all_below() -> None:
    """Kill all descendants of this process: orphans become its children."""
    while children := _children():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
