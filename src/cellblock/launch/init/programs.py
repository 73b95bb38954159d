"""Programs that a session's init runs on the host's request, confined like the worker, but allowed to execute others.

There are two kinds: approved commands of cells, with the streams of the kernel, and background programs, with their own
streams and watcher.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NoReturn

from cellblock.launch.init import processes, specialise, watcher
from cellblock.launch.init.successor import fork
from cellblock.launch.init.watcher import ALONE, SUPERVISED, Surroundings
from cellblock.walls.sandbox.confine import confine
from cellblock.wire.control import Keep, Run
from cellblock.wire.datagrams import encode_control
from cellblock.wire.program_messages import Unstarted
from cellblock.wire.sandbox import Confinement

_MOST_IDLE = 4
"""Watchers of each kind that are kept for the next programs."""

_PASSES = 3  # processes that fork meanwhile are killed in the next round

# The streams that go to files, with the suffixes of the files.
_KEPT: dict[Keep, dict[int, str]] = {
    "nothing": {},
    "out": {1: ".out"},
    "err": {2: ".err"},
    "both": {1: ".out", 2: ".err"},
    "together": {1: ".out", 2: ".out"},
}


class Programs:
    """The programs that init runs for a worker.

    Attributes:
        env: The session's initial environment. It never leaves init: changes by code of the session are sent separately, and
            were shown when the program was approved.
        inherited: Variables that the outer sandbox has set.
        confinement: Applied to each program.
        outputs: Standard output and error of their kernel; None: init's.
        watchers: The pids of the programs' watchers, which outlive the kernel.
        supervise: Returns a socket for the listener of a program's filter, if that needs one.
        workspace: The default directory of programs.
        packages: The directories of the session's packages.
        apart: Whether background programs have separate user namespaces (`confine`).
    """

    def __init__(self) -> None:
        self.env: dict[str, str] = {}
        self.inherited: dict[str, str] = {}
        self.confinement: Confinement | None = None
        self.outputs: tuple[int, int] | None = None
        self.watchers: set[int] = set()
        self.supervise: Callable[[], socket.socket] | None = None
        self.workspace = "/"
        self.packages: tuple[str, ...] = ()
        self.apart = False
        self._running: dict[int, tuple[int, frozenset[int]]] = {}
        """pid → the host's number, and the processes that existed when it began."""
        self._interrupted: set[int] = set()
        self._idle: dict[bool, list[socket.socket]] = {False: [], True: []}
        """The connections to watchers without a program: to open ones, and to confined ones."""
        self._busy: list[tuple[socket.socket, bool]] = []

    def run(self, message: Run, descriptors: list[int]) -> bool:
        """Start a program for the host, with the file from the message as its standard input.

        Returns:
            Whether there was room for another process. If not, standard error of the kernel says so.
        """
        sys.stderr.flush()
        before = frozenset(processes.descendants(os.getpid()))
        supervisor = None if self.supervise is None else self.supervise()
        try:
            pid = os.fork()
        except OSError as error:  # the code has used up its processes
            _say_failed(self.outputs[1] if self.outputs else 2, message, error)
            return False
        else:
            if pid == 0:
                self._become(message, descriptors, supervisor)
        finally:
            if supervisor is not None:
                supervisor.close()
        self._running[pid] = (message.number, before)
        return True

    def watch(self, descriptors: list[int], *, opened: bool) -> None:
        """Hand a background program to a watcher.

        Args:
            descriptors: The descriptors of the `Exec` message.
            opened: Whether it needs an open watcher (`watcher`).
        """
        self._look_for_idle()
        confined = not opened and self.supervise is None
        if not self._idle[confined]:
            try:
                self._fork_watcher(confined=confined)
            except OSError as error:  # the code has used up its processes
                refuse(descriptors[0], error)
                return
        idle = self._idle[confined].pop()
        supervisor = None if self.supervise is None else self.supervise()
        message = ALONE if supervisor is None else SUPERVISED
        given = descriptors if supervisor is None else [supervisor.fileno(), *descriptors]
        try:
            socket.send_fds(idle, [message], given)
        except OSError:  # it was killed: the host sees the end of the program's connection
            idle.close()
        else:
            self._busy.append((idle, confined))
        finally:
            if supervisor is not None:
                supervisor.close()

    def _fork_watcher(self, *, confined: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Without Python's handlers: it has no random or locked state, and they would take half of the time.
            pid = fork()
            if pid == 0:
                processes.offer_to_oom_killer(processes.OOM_CHILD)
                env = {**self.env, **specialise.package_variables(self.env, self.packages)}
                around = Surroundings(env, self.workspace, self.confinement, apart=self.apart)
                watcher.serve(theirs, around, confined=confined)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._idle[confined].append(ours)
        self.watchers.add(pid)

    @property
    def any_runs(self) -> bool:
        """Whether a program runs, of either kind."""
        self._look_for_idle()
        return bool(self._running or self._busy)

    def _look_for_idle(self) -> None:
        """Find the watchers whose programs have ended. End superfluous ones, and forget those that were killed."""
        for busy in [*self._busy]:
            one, confined = busy
            try:
                data = one.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            self._busy.remove(busy)
            if data and len(self._idle[confined]) < _MOST_IDLE:
                self._idle[confined].append(one)
            else:
                one.close()

    def another(self) -> Programs:
        """Return the runner of programs for another kernel of the same session."""
        other = Programs()
        other.env, other.inherited = self.env, self.inherited
        other.confinement, other.supervise = self.confinement, self.supervise
        other.workspace, other.packages, other.apart = self.workspace, self.packages, self.apart
        return other

    def close(self) -> None:
        """Close the output descriptors, and end the watchers, busy ones once their programs have ended."""
        for watching in (*self._idle[False], *self._idle[True], *(one for one, _ in self._busy)):
            watching.close()
        self._idle, self._busy = {False: [], True: []}, []
        for output in self.outputs or ():
            os.close(output)
        self.outputs = None

    def below(self) -> set[int]:
        """Return the running programs and their descendants."""
        return {*self._running}.union(*(processes.descendants(pid) for pid in self._running))

    def ended(self, pid: int, spared: Callable[[], Collection[int]]) -> int | None:
        """Forget a program or a watcher that has ended. Return a program's number, else None.

        Its background processes continue, unless it was interrupted.
        """
        self.watchers.discard(pid)
        if pid in self._interrupted:
            self.stop(spared())
            self._interrupted.discard(pid)
        return self._running.pop(pid, (None, None))[0]

    def interrupt(self) -> None:
        """Interrupt each program, like Ctrl-C."""
        self._interrupted |= set(self._running)
        processes.kill([-pid for pid in self._running], signal.SIGINT)

    def stop(self, spared: Collection[int]) -> None:
        """Kill all programs, with all their processes, even outside their process groups.

        Args:
            spared: Workers and copies. Their own children belong to cells, which continue.
        """
        for _ in range(_PASSES if self._running else 0):
            kept = {*spared}.union(*(before for _, before in self._running.values()), *map(processes.descendants, spared))
            processes.kill(pid for pid in processes.descendants(os.getpid()) if pid not in kept)

    def _become(self, message: Run, descriptors: list[int], supervisor: socket.socket | None) -> NoReturn:
        """Execute a program in a fork of init, with the session's standard streams, and no other descriptor of init's."""
        try:
            processes.forget_signals()
            processes.offer_to_oom_killer(processes.OOM_CHILD)
            os.setsid()
            processes.die_with_parent(signal.SIGKILL)
            # Above the descriptors that are closed, and away from standard input, which `confine` replaces.
            source = processes.move_high(descriptors[0]) if descriptors else None
            for place, output in enumerate(self.outputs or (), 1):
                os.dup2(output, place)
            if supervisor is not None:
                kept = socket.socket(fileno=processes.move_high(supervisor.detach()))
                supervisor = kept
            processes.close_descriptors(3)
            if self.confinement is not None:
                confine(self.confinement, supervisor)
            # From here on with only the permissions of the session's code, which has chosen the directory.
            os.chdir(message.cwd)
            if source is not None:
                os.dup2(source, 0)
            _keep(message.keep, message.place)
            os.execvpe(message.argv[0], message.argv, self._environment(message))
        except BaseException as error:  # nothing may return from here into init, because this is a fork of it
            _say_failed(2, message, error)
        finally:
            os._exit(127)

    def _environment(self, message: Run) -> dict[str, str]:
        """Return the environment of a program. Of the code's changes, it contains only those that were shown."""
        env = self.env if message.env is None else {**self.inherited, **message.env}
        return {name: value for name, value in {**env, **message.changes}.items() if value is not None}


def _say_failed(output: int, message: Run, error: BaseException) -> None:
    os.write(output, f"{message.argv[0]} cannot be run: {error}\n".encode(errors="backslashreplace"))


def refuse(connection: int, error: OSError) -> None:
    """Report to the host that a background program was not started."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection)) as told:
        told.send(encode_control(Unstarted(error.errno or 0, "program")), socket.MSG_DONTWAIT)


def _keep(keep: Keep, place: str | None) -> None:
    """Redirect output to new files, which the code then reads."""
    opened: dict[str, int] = {}
    for stream, suffix in _KEPT[keep].items():
        if suffix not in opened:
            opened[suffix] = os.open(
                f"{place}{suffix}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        os.dup2(opened[suffix], stream)
