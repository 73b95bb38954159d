"""Programs that a session's init runs on the host's request, confined like the worker, but free to execute others."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Collection
from typing import NoReturn

from cellblock.init import processes
from cellblock.sandbox.confine import confine
from cellblock.wire.control import Keep, Run
from cellblock.wire.sandbox import Confinement

_PASSES = 3  # processes that fork meanwhile are killed in the next round

# Which of a program's streams go to files, under which names.
_KEPT: dict[Keep, dict[int, str]] = {
    "nothing": {},
    "out": {1: ".out"},
    "err": {2: ".err"},
    "both": {1: ".out", 2: ".err"},
    "together": {1: ".out", 2: ".out"},
}


class Programs:
    """What init runs beside the worker.

    Attributes:
        env: The environment that the session began with. It never leaves init: what code of the session changes comes as
            changes, which were shown when the program was approved.
        inherited: Variables that the sandbox around this one has set.
        confinement: What confines each program.
        outputs: Where they write: standard output and error of the kernel that they are run for; None: where init does.
        supervise: Returns a socket for the listener of a program's filter, if that needs one.
    """

    def __init__(self) -> None:
        self.env: dict[str, str] = {}
        self.inherited: dict[str, str] = {}
        self.confinement: Confinement | None = None
        self.outputs: tuple[int, int] | None = None
        self.supervise: Callable[[], socket.socket] | None = None
        self._running: dict[int, tuple[int, frozenset[int]]] = {}
        """pid → the host's number, and what there was when it began"""
        self._interrupted: set[int] = set()

    def run(self, message: Run, descriptors: list[int]) -> None:
        """Begin what the host wants run, with the file that came with the message as its standard input."""
        sys.stderr.flush()
        before = frozenset(processes.descendants(os.getpid()))
        supervisor = None if self.supervise is None else self.supervise()
        pid = os.fork()
        if pid == 0:
            self._become(message, descriptors, supervisor)
        if supervisor is not None:
            supervisor.close()
        self._running[pid] = (message.number, before)

    def another(self) -> Programs:
        """Return what runs the programs of another kernel of the same session."""
        other = Programs()
        other.env, other.inherited = self.env, self.inherited
        other.confinement, other.supervise = self.confinement, self.supervise
        return other

    def close(self) -> None:
        """Close what they write to."""
        for output in self.outputs or ():
            os.close(output)
        self.outputs = None

    def below(self) -> set[int]:
        """Return what runs, and what it has started."""
        return {*self._running}.union(*(processes.descendants(pid) for pid in self._running))

    def ended(self, pid: int, spared: Collection[int]) -> int | None:
        """Forget a program that has ended; return its number, or None if it is not one of them.

        What it left in the background goes on, unless it was interrupted.
        """
        if pid in self._interrupted:
            self.stop(spared)
            self._interrupted.discard(pid)
        return self._running.pop(pid, (None, None))[0]

    def interrupt(self) -> None:
        """Interrupt each, as Ctrl-C does."""
        self._interrupted |= set(self._running)
        processes.kill([-pid for pid in self._running], signal.SIGINT)

    def stop(self, spared: Collection[int]) -> None:
        """Kill all of them, with everything that was started since, also what has left their process groups.

        Args:
            spared: Workers and copies. Their own children are those of cells, which go on.
        """
        for _ in range(_PASSES if self._running else 0):
            kept = {*spared}.union(*(before for _, before in self._running.values()), *map(processes.descendants, spared))
            processes.kill(pid for pid in processes.descendants(os.getpid()) if pid not in kept)

    def _become(self, message: Run, descriptors: list[int], supervisor: socket.socket | None) -> NoReturn:
        """In a fork of init: execute a program with the session's standard streams, and nothing else of init's."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            processes.die_with_parent(signal.SIGKILL)
            # Out of the way of what is closed, and of what confining puts in place of standard input.
            source = processes.move_high(descriptors[0]) if descriptors else None
            for place, output in enumerate(self.outputs or (), 1):
                os.dup2(output, place)
            if supervisor is not None:
                kept = socket.socket(fileno=processes.move_high(supervisor.detach()))
                supervisor = kept
            processes.close_descriptors(3)
            if self.confinement is not None:
                confine(self.confinement, supervisor)
            # From here on with no more rights than code of the session: it has chosen the directory.
            os.chdir(message.cwd)
            if source is not None:
                os.dup2(source, 0)
            _keep(message.keep, message.place)
            os.execvpe(message.argv[0], message.argv, self._environment(message))
        except BaseException as error:  # nothing may return from here into init, which this is a fork of
            os.write(2, f"{message.argv[0]} cannot be run: {error}\n".encode(errors="backslashreplace"))
        finally:
            os._exit(127)

    def _environment(self, message: Run) -> dict[str, str]:
        """Return the environment of a program. Of what the code has changed there is in it only what was shown."""
        env = self.env if message.env is None else {**self.inherited, **message.env}
        return {name: value for name, value in {**env, **message.changes}.items() if value is not None}


def _keep(keep: Keep, place: str | None) -> None:
    """Have output go to new files, for the code to read."""
    opened: dict[str, int] = {}
    for stream, suffix in _KEPT[keep].items():
        if suffix not in opened:
            opened[suffix] = os.open(
                f"{place}{suffix}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        os.dup2(opened[suffix], stream)
