"""Runs between a host and a program such as an MCP server, and ends the program's process tree.

Usage: keeper.py LIFELINE SANDBOX COMMAND [ARGUMENT ...]. Started by path, like boot.py. The program gets this process's
standard streams and environment. It is ended, with its descendants and orphans, when the host closes its end of the pipe
LIFELINE, when the host dies for any reason, and when the program itself has ended: first SIGTERM, a second later SIGKILL.
SANDBOX is the descriptor of a socket with the host's description of the sandbox (`sandboxed`); ``-`` means none. Exits with
the program's status; 128 plus the number of a signal if it was killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from cellblock.walls.sandbox.placeholders import Hold

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""

_PATIENCE = 5.0  # for processes that cannot be killed, such as another user's

EXIT_NOT_STARTED = 127


def main(lifeline: int, sandbox: int | None, command: list[str]) -> NoReturn:
    """Start the program, and stay until it has ended."""
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
    from cellblock.launch.init import processes

    host = os.getppid()
    processes.become_subreaper()
    processes.resume_after_parent()
    watched = [lifeline]
    if hasattr(os, "pidfd_open"):
        # If a fork of the host has inherited the lifeline, its end does not show when the host dies.
        try:
            watched.append(os.pidfd_open(host))
        except OSError:
            sys.exit(EXIT_NOT_STARTED)  # it has ended
        if os.getppid() != host:
            sys.exit(EXIT_NOT_STARTED)
    wake, notify = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(notify, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    holds: list[Hold] = []
    if sandbox is None:
        program = os.fork()
        if program == 0:
            _become(processes, lifeline, command)
    else:
        from cellblock.launch.keeper.sandboxed import run_sandboxed

        program, holds = run_sandboxed(sandbox, command)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # so that the host sees the end of the program's streams as soon as the program has ended
        os.dup2(null, stream)
    code = _keep(processes, program, watched, wake)
    for hold in holds:
        hold.release()
    os._exit(code if code >= 0 else 128 - code)


def _become(processes: ModuleType, lifeline: int, command: list[str]) -> NoReturn:
    try:
        processes.forget_signals()
        os.setsid()
        processes.die_with_parent(signal.SIGKILL)
        os.close(lifeline)
        processes.execute(command)
    finally:
        os._exit(EXIT_NOT_STARTED)


def _keep(processes: ModuleType, program: int, watched: list[int], wake: int) -> int:
    """Wait until the program has ended or must end. Return its exit code once all its processes have ended."""
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
            return EXIT_NOT_STARTED if status is None else status
        if status is not None:
            number = signal.SIGKILL  # the program has ended, so its descendants have no purpose
        elif deadline is not None and time.monotonic() >= deadline:
            number = signal.SIGKILL
        elif deadline is None and not ready & {*watched}:
            continue
        if number == signal.SIGKILL:
            return _kill_everything(processes, poll, wake, status)
        for descriptor in watched:
            poll.unregister(descriptor)  # they stay ready forever
        watched, deadline = [], time.monotonic() + GRACE
        processes.kill(processes.descendants(os.getpid()), number)


def _kill_everything(processes: ModuleType, poll: select.poll, wake: int, status: int | None) -> int:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        processes.kill(processes.descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            break
        # Not only for SIGCHLD: a process that was forked during the walk was not killed, and causes no signal.
        if wake in {descriptor for descriptor, _ in poll.poll(10)}:
            os.read(wake, 4096)
    return -signal.SIGKILL if status is None else status


if __name__ == "__main__":
    main(int(sys.argv[1]), None if sys.argv[2] == "-" else int(sys.argv[2]), sys.argv[3:])
