"""Stands between a host and a program that it started, such as an MCP server, so that the whole tree ends when it has to.

Usage: keeper.py LIFELINE COMMAND [ARGUMENT ...]. Started by path, like boot.py. The program gets this process's standard
streams and environment. It is ended, with everything below it and everything that it orphaned, when the host closes its
end of the pipe LIFELINE, when the host dies in whatever way, and when the program itself has ended: asked first, killed a
second later. Exits as the program did; 128 and the number of a signal for one that was killed.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import sys
import time
from types import ModuleType
from typing import NoReturn

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""

_PATIENCE = 5.0  # with what cannot be killed, such as a process of another user

EXIT_NOT_STARTED = 127


def main(lifeline: int, command: list[str]) -> NoReturn:
    """Start the program, and stay until it is gone."""
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from cellblock.zygote import processes

    host = os.getppid()
    processes.become_subreaper()
    watched = [lifeline]
    if hasattr(os, "pidfd_open"):
        # A lifeline that some fork of the host has inherited says nothing when the host dies.
        try:
            watched.append(os.pidfd_open(host))
        except OSError:
            sys.exit(EXIT_NOT_STARTED)  # it is gone
        if os.getppid() != host:
            sys.exit(EXIT_NOT_STARTED)
    wake, notify = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(notify, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    program = os.fork()
    if program == 0:
        _become(processes, lifeline, command)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the host sees the end of the program's streams when the program is gone, and not later
        os.dup2(null, stream)
    _keep(processes, program, watched, wake)


def _become(processes: ModuleType, lifeline: int, command: list[str]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # the second and third are Python's
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        processes.die_with_parent(signal.SIGKILL)
        os.close(lifeline)
        os.execvp(command[0], command)
    except OSError as error:
        # A directory on the PATH that may not be looked into is no reason, if the program is nowhere else either.
        hidden = error.errno == errno.EACCES and "/" not in command[0] and shutil.which(command[0]) is None
        why = os.strerror(errno.ENOENT if hidden else error.errno or 0)
        os.write(2, f"{command[0]}: {why}\n".encode(errors="replace"))
    finally:
        os._exit(EXIT_NOT_STARTED)


def _keep(processes: ModuleType, program: int, watched: list[int], wake: int) -> NoReturn:
    poll = select.poll()
    for descriptor in (*watched, wake):
        poll.register(descriptor, select.POLLIN)
    status, deadline, number = None, None, signal.SIGTERM
    while True:
        remaining = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
        ready = {descriptor for descriptor, _ in poll.poll(remaining * 1000)}
        if wake in ready:
            os.read(wake, 4096)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == program:
                    status = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            os._exit(EXIT_NOT_STARTED if status is None else status if status >= 0 else 128 - status)
        if status is not None:
            number = signal.SIGKILL  # whom should they serve now?
        elif deadline is not None and time.monotonic() >= deadline:
            number = signal.SIGKILL
        elif deadline is None and not ready & {*watched}:
            continue
        if number == signal.SIGKILL:
            _kill_everything(processes, poll, wake, status)
        for descriptor in watched:
            poll.unregister(descriptor)  # they stay ready for ever
        watched, deadline = [], time.monotonic() + GRACE
        processes.kill(processes.descendants(os.getpid()), number)


def _kill_everything(processes: ModuleType, poll: select.poll, wake: int, status: int | None) -> NoReturn:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        processes.kill(processes.descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            break
        # Not for SIGCHLD alone: what was forked during the walk has not been killed, and signals nothing.
        if wake in {descriptor for descriptor, _ in poll.poll(10)}:
            os.read(wake, 4096)
    code = -signal.SIGKILL if status is None else status
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
