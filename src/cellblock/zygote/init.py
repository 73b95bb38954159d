"""Process 1 of a session: makes the worker, reaps, passes on the host's signals, and ends everything at the end.

It outlives no one: when the host, the zygote or the worker is gone, everything below it is killed and it exits.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from cellblock.wire.control import FORK_DESCRIPTORS, MAX_CONTROL, MAX_DESCRIPTORS, decode_control, encode_control
from cellblock.zygote import processes
from cellblock.zygote.specialise import specialise

if TYPE_CHECKING:
    from cellblock.worker.shell import Shell
    from cellblock.worker.streams import Outbox

CHANNEL, CONTROL, HOST = 3, 4, 5
"""Descriptors of a session's processes, besides 0 to 2. The worker keeps only the first."""

_FIRST_FREE = 6
EXIT_BROKEN = 70


def run_init(descriptors: list[int], host: int | None, warmed: tuple[Shell, Outbox] | None, preload: tuple[str, ...]) -> NoReturn:
    """Become a session's init; never returns.

    Args:
        descriptors: As they came with ``fork``: channel, control, stdout, stderr.
        host: A pidfd of the host, or None where there are none.
        warmed: What `warm` made, or None to let the worker do that.
        preload: Modules for the worker to import, where nothing is warmed.
    """
    try:
        _place([*descriptors, *([] if host is None else [host])])
        os.setsid()
        processes.become_subreaper()
        if warmed is not None:
            # A host's thread is the parent otherwise, and the signal comes when that thread ends.
            processes.die_with_parent(signal.SIGTERM)
        control = socket.socket(fileno=CONTROL)
        spec = decode_control(control.recv(MAX_CONTROL))
        wake = _wake_on_signals()
        worker = os.fork()
        if worker == 0:
            _run_worker(spec, warmed, preload)
        os.close(CHANNEL)
        _Init(control, HOST if host is not None else None, wake, worker).run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(EXIT_BROKEN)


def _place(sources: list[int]) -> None:
    """Put channel, control, stdout, stderr and host where they belong, and close everything else."""
    import fcntl

    # First out of the way of all targets, or one would overwrite another that is still to be moved.
    channel, control, out, err, *host = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in sources]
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target, inheritable=True)
    for source, target in ((channel, CHANNEL), (control, CONTROL), *((fd, HOST) for fd in host)):
        os.dup2(source, target, inheritable=False)
    os.closerange(_FIRST_FREE if host else HOST, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _wake_on_signals() -> int:
    """Have SIGCHLD and SIGTERM wake a poll; return the descriptor to poll."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _run_worker(spec: dict[str, Any], warmed: tuple[Shell, Outbox] | None, preload: tuple[str, ...]) -> NoReturn:
    status = EXIT_BROKEN
    try:
        processes.die_with_parent(signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(CONTROL, 64)
        os.setsid()
        if warmed is None:
            from cellblock.zygote.warm import warm

            warmed = warm(preload)
        shell, outbox = warmed
        specialise(spec)
        shell.use_home(os.path.expanduser("~"))
        import faulthandler

        from cellblock.worker.main import Worker, leave

        faulthandler.enable(2)  # a segfault leaves a Python traceback on stderr
        Worker(shell, outbox, socket.socket(fileno=CHANNEL), spec.get("stay_in")).run()
        leave()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else EXIT_BROKEN
    except BaseException:
        sys.stderr = sys.__stderr__
        traceback.print_exc()
    finally:
        try:
            if sys.__stderr__ is not None:
                sys.__stderr__.flush()
        finally:
            os._exit(status)


class _Init:
    """The loop of a session's init."""

    def __init__(self, control: socket.socket, host: int | None, wake: int, worker: int) -> None:
        self._control = control
        self._host = host
        self._wake = wake
        self._worker = worker

    def run(self) -> NoReturn:
        poll = select.poll()
        for descriptor in (self._control.fileno(), self._host, self._wake):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    if signal.SIGTERM in os.read(self._wake, 4096):
                        self._end()
                    self._reap()
                elif descriptor == self._host:
                    self._end()
                else:
                    self._obey()

    def _obey(self) -> None:
        try:
            data = self._control.recv(MAX_CONTROL)
        except ConnectionError:
            data = b""
        if not data:
            self._end()
        message = decode_control(data)
        if message["op"] == "interrupt":
            self._interrupt()
        elif message["op"] == "kill_children":
            processes.kill(pid for pid in processes.descendants(os.getpid()) if pid != self._worker)
        # The answer tells the host that the signal is on its way, so that it cannot hit a later cell.
        self._tell("done")

    def _interrupt(self) -> None:
        try:
            # The group, as a terminal's ^C does: subprocesses of the cell are meant as well.
            os.killpg(self._worker, signal.SIGINT)
        except ProcessLookupError:
            processes.kill([self._worker], signal.SIGINT)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._worker:
                self._tell("exited", status=status)
                self._end()

    def _tell(self, op: str, **fields: Any) -> None:
        try:
            self._control.send(encode_control(op, **fields), socket.MSG_NOSIGNAL)
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """Kill everything below, wait until it is gone, and exit. The host sees the end of the control socket last."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while True:
            processes.kill(processes.descendants(os.getpid()))
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                os._exit(0)
            # The time limit is for a fork that raced with the walk, and made no signal since.
            if poll.poll(10):
                os.read(self._wake, 4096)


def serve_alone(preload: tuple[str, ...]) -> NoReturn:
    """Be a session of one's own, without a zygote: take the descriptors of one ``fork`` from standard input, and begin.

    The worker is forked before anything but this module is loaded, and imports IPython itself, so that nothing forks that
    cannot stand it (macOS's system libraries, mostly).
    """
    with socket.socket(fileno=0) as control:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_CONTROL, MAX_DESCRIPTORS)
        decode_control(data)
        control.detach()
    host = descriptors[FORK_DESCRIPTORS] if len(descriptors) > FORK_DESCRIPTORS else None
    run_init(descriptors[:FORK_DESCRIPTORS], host, None, preload)
