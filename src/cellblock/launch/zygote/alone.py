"""A session without a zygote: it gets a fresh interpreter, for programs in which forking is unsafe."""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import NoReturn

from cellblock.launch.init import processes
from cellblock.launch.init.init import run_init
from cellblock.launch.init.making import release_holds
from cellblock.launch.init.refusing import refusal, refuse_session
from cellblock.launch.leftovers import remove_after
from cellblock.walls.sandbox.ground import Ground
from cellblock.walls.sandbox.namespaces import fork_into_namespaces
from cellblock.wire.control import TO_LAUNCHER, Hello
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS


def serve_alone(preload: tuple[str, ...], native: bool, environment: str) -> NoReturn:
    """Run a single session without a zygote, with the handover socket as standard input.

    The worker is forked before anything but this module is loaded, and imports IPython itself. So libraries that do not
    survive a fork (mostly macOS's system libraries) are not forked.
    """
    with socket.socket(fileno=os.dup(0)) as handover:
        data, descriptors, _, _ = socket.recv_fds(handover, MAX_CONTROL, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)
        host, group = (*descriptors, None, None)[:2]
        hello = TO_LAUNCHER.decode(data)
        assert isinstance(hello, Hello)
        places = hello.places
        if not native:
            run_init(handover.detach(), host, None, preload, None, places, environment=environment)
        ground = Ground.prepare()
        processes.open_many_files()
        processes.resume_after_parent()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = os.pidfd_open(os.getpid())
        try:
            init = fork_into_namespaces(group)
        except OSError as error:
            refuse_session(handover.detach(), refusal(error, "process"))
        if init == 0:
            run_init(theirs.detach(), host, None, preload, ground, parent=own, environment=environment)
        theirs.close()
        os.close(own)
        signal.signal(signal.SIGTERM, lambda *_: processes.kill([init]))
        data, descriptors, _, _ = socket.recv_fds(handover, MAX_CONTROL, MAX_DESCRIPTORS)
        try:
            if data:
                socket.send_fds(ours, [data], descriptors)
            else:
                ours.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has already ended, and will be reaped soon
    _guard(init, ours, host, descriptors[1] if descriptors else None, places)


def _guard(init: int, handover: socket.socket, host: int | None, control: int | None, places: str | None) -> NoReturn:
    """Connect the lifetimes of the host, which knows this process, and an init in its own namespaces."""
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), descriptor)
    kept = processes.move_high(handover.detach())
    host, control = (fd if fd is None else processes.move_high(fd) for fd in (host, control))
    os.closerange(3, processes.HIGH)
    poll = select.poll()
    for watched in (os.pidfd_open(init), host):
        if watched is not None:
            poll.register(watched, select.POLLIN)
    poll.poll()
    if host is not None and processes.is_readable(host):
        processes.kill([init])  # it may be stopped, and would not notice
    status = os.waitpid(init, 0)[1]
    release_holds(socket.socket(fileno=kept))
    remove_after(host, places, control)
    os._exit(os.waitstatus_to_exitcode(status) & 255)
