"""Watches one background program: starts it, signals its whole tree, and reports how it ended.

Each running program has its own watcher, a fork of init. Orphans of the program become its children. So it always finds all of
them, and none of other programs or of the kernel. It runs no code of the session.

There are two kinds. A confined watcher has applied the confinement to itself. It starts programs without a fork of Python, in
a third of the time, and hides from them. An open watcher forks, and the fork confines itself: for terminals, for the files
helper, and for Landlock sandboxes, where a confined process does not see its children.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NoReturn

from cellblock.launch.init import files_helper, processes
from cellblock.launch.init.successor import fork
from cellblock.walls.linux.syscall import hide
from cellblock.walls.sandbox.confine import confine
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS, ControlMessage, encode_control
from cellblock.wire.program_messages import (
    SPECIFICATION,
    TO_WATCHER,
    Ended,
    Failed,
    Signal,
    Specification,
    Started,
    Unstarted,
)
from cellblock.wire.sandbox import Confinement

SUPERVISED, ALONE, IDLE = b"s", b"a", b"i"
"""Messages: a program whose filter needs a listener, one whose filter does not, and that nothing of one is left."""

_HANDOVER = 3
_REPORT = struct.Struct("=iB")
_WHAT: tuple[Failed, ...] = ("sandbox", "terminal", "cwd", "log", "program")
_MOMENT = 0.01  # seconds: for a fork that raced with the walk over the tree, and has caused no signal since


def serve(handover: socket.socket, surroundings: Surroundings, *, confined: bool) -> NoReturn:
    """Watch one program after another, in a fork of init; never returns.

    Watching costs a fork of init some hundred pages that it writes to. The next program finds them copied.

    Args:
        handover: The connection to init. Each message comes with the descriptors of a program: the socket for the listener of
            its filter, if it needs one, the connection to the host, the file with the specification, and its standard streams.
            The answer, when all its processes have ended, is `IDLE`.
        surroundings: The surroundings of all programs.
        confined: Whether it confines itself, and not the fork that becomes a program.
    """
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for place in range(3):  # init's own are the kernel's, whose reader would wait for their end
            os.dup2(null, place)
        processes.place_descriptors({_HANDOVER: handover.detach()})
        os.setsid()
        processes.die_with_parent(signal.SIGKILL)
        processes.become_subreaper()
        wake = processes.wake_on_signals()
        signal.signal(signal.SIGINT, lambda *_: None)  # not ignored, as by init: programs would ignore it, too
        processes.heed_signals()
        handover = socket.socket(fileno=_HANDOVER)
        failure = None
        if confined:
            try:
                _confine(surroundings)
            except OSError as error:
                failure = error
            _hide()
        while True:
            data, descriptors, _, _ = socket.recv_fds(handover, 1, MAX_DESCRIPTORS)
            if not data:
                break
            with ExitStack() as opened:
                supervisor = None
                if data == SUPERVISED:
                    supervisor = opened.enter_context(socket.socket(fileno=descriptors.pop(0)))
                connection = opened.enter_context(socket.socket(fileno=descriptors.pop(0)))
                if failure is not None:  # another watcher starts the next one
                    connection.send(encode_control(Unstarted(failure.errno or 0, "sandbox")))
                    break
                with open(descriptors.pop(0), "rb", buffering=0) as file:
                    file.seek(0)
                    wanted = SPECIFICATION.read(file.readall())
                kind = _Confined if confined else _Open
                _Watcher(connection, wake, handover).run(kind(wanted, surroundings, supervisor, descriptors))
    except BaseException:  # of any kind: the host sees the end of the connection
        pass
    finally:
        os._exit(1)


def _hide() -> None:
    """Protect this process from programs in its user namespace."""
    hide()


@dataclass
class Surroundings:
    """The surroundings of the programs of one kernel.

    Attributes:
        env: The environment that specifications change.
        workspace: The default directory of programs.
        confinement: Applied to each program.
        apart: Whether programs have separate user namespaces (`confine`).
    """

    env: Mapping[str, str]
    workspace: str
    confinement: Confinement | None
    apart: bool


def _confine(around: Surroundings, supervisor: socket.socket | None = None) -> None:
    """Apply the confinement to this process, if there is any."""
    if around.confinement is not None:
        confine(around.confinement, supervisor, apart=around.apart)


def _below() -> list[int]:
    """Return all live processes that the program started, in any session."""
    return processes.descendants(os.getpid())


class _UnstartedError(Exception):
    """A program that could not be started."""

    def __init__(self, error: OSError, what: Failed) -> None:
        self.message = Unstarted(error.errno or 0, what)


class _Start:
    """Starts a program."""

    def __init__(
        self, wanted: Specification, surroundings: Surroundings, supervisor: socket.socket | None, streams: list[int]
    ) -> None:
        self._wanted = wanted
        self._around = surroundings
        changed = {**surroundings.env, **wanted.env}
        self._env = {name: value for name, value in changed.items() if value is not None}
        self._supervisor = supervisor
        self._streams = streams

    def close(self) -> None:
        """Close the program's streams, which it has by now."""
        while self._streams:
            os.close(self._streams.pop())

    def start(self) -> tuple[int, int | None, int | None]:
        """Start the program.

        Returns:
            Its process id; a descriptor that reports an exec failure, unless it was executed; and its terminal's other end, if
            it has a terminal.

        Raises:
            _UnstartedError: It could not be started.
        """
        raise NotImplementedError

    def _open_log(self, path: str) -> int:
        # Not blocking: the code may have created a FIFO there without a reader.
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        os.set_blocking(log, True)
        return log


class _Confined(_Start):
    """Starts a program from a confined watcher."""

    def start(self) -> tuple[int, int | None, int | None]:
        wanted, place = self._wanted, self._around.workspace
        what: Failed = "cwd"
        try:
            os.chdir(place)
            what = "log"
            if wanted.log is not None:
                self._streams.append(self._open_log(wanted.log))
            what = "program"
            stdin = self._streams[0] if wanted.stdin else subprocess.DEVNULL
            out, err = self._streams[1 if wanted.stdin else 0], self._streams[-1]
            cwd = None if wanted.cwd is None else os.path.join(place, wanted.cwd)
            made = subprocess.Popen(
                wanted.argv, stdin=stdin, stdout=out, stderr=err, cwd=cwd, env=self._env, start_new_session=True
            )
        except OSError as error:
            wrong_place = what == "program" and wanted.cwd is not None and error.filename == cwd != wanted.argv[0]
            raise _UnstartedError(error, "cwd" if wrong_place else what) from None
        made.returncode = 0  # it is waited for here, not by this object
        return made.pid, None, None


class _Open(_Start):
    """Starts a program from an unconfined watcher, in a confined fork."""

    def start(self) -> tuple[int, int | None, int | None]:
        master, terminal = None, None
        if self._wanted.terminal is not None:
            try:
                master, terminal = os.openpty()
            except OSError as error:
                raise _UnstartedError(error, "terminal") from None
            self._streams = [terminal]
            rows, columns = self._wanted.terminal
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        reader, writer = os.pipe()
        try:
            pid = fork()
        except OSError as error:
            for descriptor in (reader, writer, *([] if master is None else [master])):
                os.close(descriptor)
            raise _UnstartedError(error, "program") from None
        if pid == 0:
            self._become(writer)
        os.close(writer)
        return pid, reader, master

    def _become(self, report: int) -> NoReturn:
        """Become the program, in a fork of the watcher."""
        step: Failed = "sandbox"
        try:
            processes.forget_signals()
            os.setsid()
            processes.die_with_parent(signal.SIGKILL)
            report = processes.move_high(report)
            streams = [processes.move_high(one) for one in self._streams]
            if self._supervisor is not None:
                self._supervisor = socket.socket(fileno=processes.move_high(self._supervisor.detach()))
            processes.close_descriptors(3)
            _confine(self._around, self._supervisor)
            step = "terminal"
            if self._wanted.terminal is not None:
                fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
            step = "cwd"
            os.chdir(self._around.workspace)
            if self._wanted.cwd is not None:
                os.chdir(self._wanted.cwd)
            step = "log"
            self._place(streams)
            step = "program"
            if not self._wanted.argv:
                os.close(report)
                files_helper.serve()
            os.execvpe(self._wanted.argv[0], self._wanted.argv, self._env)
        except OSError as error:
            os.write(report, _REPORT.pack(error.errno or 0, _WHAT.index(step)))
        except BaseException:  # of any kind: nothing may return into the watcher
            os.write(report, _REPORT.pack(0, _WHAT.index(step)))
        finally:
            os._exit(127)

    def _place(self, streams: list[int]) -> None:
        """Set the standard streams: from here on with the permissions of the session's code."""
        wanted = self._wanted
        if wanted.terminal is not None:
            for place in range(3):
                os.dup2(streams[0], place)
            return
        if wanted.stdin:
            os.dup2(streams.pop(0), 0)
        if wanted.log is not None:
            streams = [self._open_log(wanted.log)] * 2
        elif wanted.merged:
            streams *= 2
        for place, stream in enumerate(streams, 1):
            os.dup2(stream, place)


class _Watcher:
    """The watcher of a program and all its processes."""

    def __init__(self, connection: socket.socket, wake: int, handover: socket.socket) -> None:
        self._connection = connection
        self._wake = wake
        self._handover = handover
        self._leader = 0
        """The program's process id, which is also its group's."""
        self._lives = True
        self._master: int | None = None
        """The other end of its terminal, until the host has it."""
        self._report: int | None = None
        """Where a failure to execute the program is reported; None once that is known."""

    def run(self, start: _Start) -> None:
        try:
            self._leader, self._report, self._master = start.start()
        except _UnstartedError as error:
            self._tell(error.message)
            self._rest()
        else:
            start.close()
            if self._report is None:
                self._tell(Started(self._leader))
            self._follow()
        finally:
            start.close()
        for descriptor in (self._report, self._master):
            if descriptor is not None:
                os.close(descriptor)

    def _follow(self) -> None:
        poll = select.poll()
        for descriptor in (self._wake, self._connection.fileno(), self._report):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        while self._reap():
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    os.read(self._wake, 4096)
                elif descriptor == self._connection.fileno():
                    if not self._obey():  # the host has ended, or has given the program up
                        self._kill_tree()
                        poll.unregister(self._connection.fileno())
                elif self._report is not None:
                    poll.unregister(self._report)
                    self._read_report()

    def _read_report(self) -> None:
        """Report that the program was executed, or why not."""
        assert self._report is not None
        failure = os.read(self._report, _REPORT.size)  # its end, if the program was executed
        os.close(self._report)
        self._report = None
        if failure:
            code, step = _REPORT.unpack(failure)
            self._lives = False
            self._tell(Unstarted(code, _WHAT[step]))
            return
        self._tell(Started(self._leader), self._master)
        self._master = None

    def _tell(self, message: ControlMessage, descriptor: int | None = None) -> None:
        try:
            if descriptor is None:
                self._connection.send(encode_control(message), socket.MSG_NOSIGNAL)
            else:
                socket.send_fds(self._connection, [encode_control(message)], [descriptor], socket.MSG_NOSIGNAL)
                os.close(descriptor)
        except OSError:
            return  # the reader is about to see the host's end

    def _reap(self) -> bool:
        """Reap ended processes, and report the program's end. Return whether any process is left."""
        status, left = None, True
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._leader and self._lives:
                    self._lives, status = False, found[1]
        except ChildProcessError:
            left = False
        if not left:
            self._rest()
        if status is not None:
            if self._report is not None:
                self._read_report()
            self._tell(Ended(status, tuple(_below()) if left else ()))
        return left

    def _rest(self) -> None:
        """Tell init that all processes have ended, before the host knows and asks for the next program."""
        with suppress(OSError):  # its kernel has ended: init keeps no watcher for it
            self._handover.send(IDLE, socket.MSG_NOSIGNAL)

    def _obey(self) -> bool:
        """Carry out a command. Return False if the host has ended."""
        try:
            data = self._connection.recv(MAX_CONTROL)
        except OSError:
            return False
        if data:
            self._signal(TO_WATCHER.decode(data))
        return bool(data)

    def _signal(self, message: Signal) -> None:
        if message.scope == "program":
            if self._lives:  # it was not waited for: the id is still its own
                processes.kill([self._leader], message.number)
        elif message.scope == "tree" and message.number == signal.SIGKILL:
            self._kill_tree()
        else:
            found = _below()
            if message.scope == "group":  # by its members: the id may belong to others when all of them have ended
                found = [pid for pid in found if processes.group_of(pid) == self._leader]
            processes.kill(found, message.number)

    def _kill_tree(self) -> None:
        """Kill all descendants, until a walk finds no other: the next walk finds what is forked meanwhile."""
        killed: set[int] = set()
        while True:
            found = [pid for pid in _below() if pid not in killed or not processes.stopped(pid)]
            if not found:
                return
            processes.kill(found)
            killed.update(found)
            if processes.is_readable(self._wake, _MOMENT):
                os.read(self._wake, 4096)
