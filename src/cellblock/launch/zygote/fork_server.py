"""The fork server: forks a session's init on the host's request, reaps, and ends with the host."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from cellblock.launch.init import processes
from cellblock.launch.init.init import rehearse, run_init
from cellblock.launch.init.making import release_holds
from cellblock.launch.leftovers import remove_after
from cellblock.launch.zygote.hugepages import collapse
from cellblock.launch.zygote.immortal import immortalise
from cellblock.walls.linux.syscall import hide
from cellblock.walls.sandbox.ground import Ground
from cellblock.walls.sandbox.namespaces import fork_into_namespaces
from cellblock.wire.control import FORK_DESCRIPTORS, TO_LAUNCHER, End, Failed, Fork, FromLauncher, Hello, Kill, Ready
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS, encode_control
from cellblock.worker.warm import find_hot_pages, warm

if TYPE_CHECKING:
    from cellblock.worker.outbox import Outbox
    from cellblock.worker.shell import Shell

_IDLE = 2
"""Milliseconds without a request after which a spare is forked for the next one."""


def serve(preload: tuple[str, ...], native: bool, environment: str) -> NoReturn:
    """Run a zygote, with the host's control socket as standard input; never returns.

    Args:
        preload: Modules to import before the first fork.
        native: Whether sessions get native sandboxes.
        environment: The directory of a trusted environment, to import them from; empty for the interpreter's packages.
    """
    control = socket.socket(fileno=os.dup(0))
    control.set_inheritable(False)
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    data, descriptors, _, _ = socket.recv_fds(control, MAX_CONTROL, MAX_DESCRIPTORS)
    if not data:
        os._exit(0)
    processes.become_subreaper()
    processes.resume_after_parent()
    ground = Ground.prepare() if native else None
    if ground is not None:
        processes.open_many_files()
    with _ending_with(control):
        warmed = warm(preload, environment)
        rehearse(() if ground is None else ground.beginning)
        immortalise()
        collapse()
        if ground is not None:
            _end_threads()
        find_hot_pages(*warmed)
    if "SANDBOX_RUNTIME" in os.environ and sys.platform == "linux":
        hide()  # this process runs in srt's sandbox, and so will the kernels
    hello = TO_LAUNCHER.decode(data)
    assert isinstance(hello, Hello)
    control.send(encode_control(Ready(ground.interpreter if ground is not None else None)))
    host, group = (*descriptors, None, None)[:2]
    _Zygote(control, host, group, warmed, ground, hello.places).run()


@contextmanager
def _ending_with(control: socket.socket) -> Iterator[None]:
    """End this process with the host during imports, which may take forever.

    The socket then raises SIGIO, whose default action is to terminate. The host sends nothing else before we are ready.
    """
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    if processes.is_readable(control):  # it ended before, which raises no more signal
        os._exit(0)
    yield
    fcntl.fcntl(control, fcntl.F_SETFL, flags)


def _end_threads() -> None:
    """Make libraries with threads (OpenBLAS) end them, as they do before a fork by the C library.

    The clone that creates a session bypasses the C library, whose first own fork would then wait for these threads forever.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


class _Zygote:
    """The event loop of a zygote."""

    def __init__(
        self,
        control: socket.socket,
        host: int | None,
        group: int | None,
        warmed: tuple[Shell, Outbox],
        ground: Ground | None,
        places: str | None,
    ) -> None:
        self._control = control
        self._host = host
        self._group = group
        """The control group of the next init, if each has one."""
        self._warmed = warmed
        self._ground = ground
        self._places = places
        """Prefix of the host's paths for its sessions."""
        self._inits: dict[int, tuple[int, socket.socket]] = {}
        """pid → the host's number of the session, and the socket on which it was handed over."""
        self._can_make = True
        self._spare: tuple[int, socket.socket] | None = None
        """A spare init, and the socket on which it waits for a session."""

    def run(self) -> NoReturn:
        wake, writer = os.pipe()
        for descriptor in (wake, writer):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the host handles ^C in its terminal
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        poll = select.poll()
        for watched in (self._control.fileno(), self._host, wake):
            if watched is not None:
                poll.register(watched, select.POLLIN)
        while True:
            events = poll.poll(_IDLE if self._spare is None and self._can_make else None)
            if not events:
                try:
                    self._spare = self._make()
                except OSError:
                    self._can_make = False  # it was not requested yet; the next request tries again and reports the failure
            for descriptor, _ in events:
                if descriptor == wake:
                    os.read(wake, 4096)
                    self._reap()
                elif descriptor == self._host:
                    self._end()
                else:
                    self._obey()

    def _obey(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_CONTROL, MAX_DESCRIPTORS)
        except ConnectionError:
            data, descriptors = b"", []
        if not data:
            self._end()
        match TO_LAUNCHER.decode(data):
            case End():
                self._places = None  # the host continues, and other kernels may use these paths
                self._end()
            case Fork(session):
                self._fork(session, data, descriptors[:FORK_DESCRIPTORS])
                if self._group is not None:
                    os.close(self._group)
                self._group = os.dup(descriptors[-1]) if len(descriptors) > FORK_DESCRIPTORS else None
            case Kill(session):
                self._kill(session)
        for descriptor in descriptors:
            os.close(descriptor)

    def _kill(self, session: int) -> None:
        processes.kill(pid for pid, (number, _) in self._inits.items() if number == session)

    def _fork(self, session: int, data: bytes, descriptors: list[int]) -> None:
        if len(descriptors) != FORK_DESCRIPTORS:
            self._tell(Failed(session, f"{len(descriptors)} descriptors arrived of {FORK_DESCRIPTORS}", 0))
            return
        self._can_make = True
        self._check_spare()
        try:
            pid, handover = self._spare or self._make()
        except OSError as error:
            self._tell(Failed(session, error.strerror or str(error), error.errno or 0))
            return
        self._spare = None
        self._inits[pid] = session, handover
        try:
            socket.send_fds(handover, [data], descriptors)
        except OSError:
            return  # it died; the host sees its connections close

    def _check_spare(self) -> None:
        """Drop the spare init if it has failed, for example in a fork. The next one may succeed."""
        if self._spare is not None and processes.is_readable(self._spare[1]):
            pid, handover = self._spare
            self._spare = None
            handover.close()
            os.waitpid(pid, 0)  # it ends now, and frees what the next one may need

    def _make(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = os.fork() if self._ground is None else fork_into_namespaces(self._group)
            except OSError:
                ours.close()
                raise
            if pid == 0:
                run_init(theirs.detach(), self._host, self._warmed, (), self._ground)
        return pid, ours

    def _reap(self) -> None:
        orphans = False
        for pid, status in processes.reap():
            orphans |= status != 0 or pid not in self._inits
            if pid in self._inits:
                release_holds(self._inits.pop(pid)[1])
            if self._spare is not None and self._spare[0] == pid:
                self._spare[1].close()
                self._spare = None
        # Orphans of a killed init were reparented to this process. Their children follow when they die.
        if orphans:  # an init that ended normally left nothing
            known = {*self._inits, *([self._spare[0]] if self._spare else [])}
            processes.kill(pid for pid in processes.children(os.getpid()) if pid not in known)

    def _tell(self, message: FromLauncher) -> None:
        try:
            self._control.send(encode_control(message), socket.MSG_NOSIGNAL)
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """Kill every session, wait until all have ended, and exit."""
        while True:
            processes.kill(processes.descendants(os.getpid()))
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                for _, handover in self._inits.values():
                    release_holds(handover)
                remove_after(self._host, self._places, self._control.fileno())
                os._exit(0)
