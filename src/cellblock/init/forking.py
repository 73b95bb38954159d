"""Copies of a live worker: it forks, and the copy waits until init has a kernel made of it, which is a fork of the copy.

Each copy goes on in a successor of itself, which is a child of init. So init alone can wait for it, and it lives on when the
worker ends that it is a copy of.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import warnings
from typing import Any

from cellblock.init import processes
from cellblock.init.specialise import reseed, seed_unloaded
from cellblock.init.successor import end_at_once, go_on_in_successor, look_up
from cellblock.wire.copies import TO_COPY, Copied, Start, Taken, Untaken
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS, encode_control
from cellblock.worker import fork_safety


def fork_copy(channel: int, nursery: int, number: int) -> Start | None:
    """Make a copy of this process, which `fork_safety.prepare` has got ready.

    Args:
        channel: The descriptor of this worker's channel, which the copy does not have.
        nursery: The descriptor of the socket on which the copy tells init that it exists.
        number: What it calls itself.

    Returns:
        In this process: None. In each kernel that is made of the copy, later: what it is to be.

    Raises:
        OSError: No copy could be made.
    """
    init, state = os.getppid(), random.getstate()  # each fork draws a new one
    if not _fork_below(init):
        return None
    # From here on, only in the copy and in what is made of it. Nothing may return or raise into code that is not to run twice.
    try:
        with open(os.devnull, "rb+", buffering=0) as null:
            for descriptor in (1, 2, channel):
                os.dup2(null.fileno(), descriptor, inheritable=descriptor < channel)
        fork_safety.part(nursery)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, socket.socket(fileno=os.dup(nursery)) as told:
            socket.send_fds(told, [encode_control(Copied(number))], [theirs.fileno()])
        return _wait(ours, channel, init, state)
    except BaseException:  # whatever it is
        end_at_once(1)


def _wait(ours: socket.socket, channel: int, init: int, state: Any) -> Start:
    """In a copy: wait to be made a kernel of, again and again. Returns in the kernels."""
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(ours, MAX_CONTROL, MAX_DESCRIPTORS)
        except InterruptedError:
            continue
        if not data:
            end_at_once(0)
        start = TO_COPY.decode(data)
        try:
            made = _fork_below(init)
        except OSError:  # the limit of processes is reached now
            made = False
            ours.send(encode_control(Untaken(start.kernel)))
        if made:
            return _become(start, descriptors, ours, channel, state)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(start: Start, descriptors: list[int], ours: socket.socket, channel: int, state: Any) -> Start:
    """In a new fork of a copy: become a kernel."""
    with ours:
        ours.send(encode_control(Taken(start.kernel)))
    for source, place in zip(descriptors, (channel, 1, 2), strict=True):
        os.dup2(source, place, inheritable=place < channel)
        os.close(source)
    _settle_in(start, state)
    return start


def _settle_in(start: Start, state: Any) -> None:
    """In a kernel made of a copy: set its environment and its random state."""
    if start.same_random_state:
        random.setstate(state)
        seed_unloaded(start.seed)
    else:
        reseed(start.seed)
    os.environ.update(start.env)


def _fork_below(init: int) -> bool:
    """Fork, so that the new process is a child of init, in a session of its own; return whether this is the new one."""
    look_up()
    pid = _fork()
    if pid:
        with contextlib.suppress(ChildProcessError):  # code that waits for any child may have been quicker
            _, status = os.waitpid(pid, 0)
            if (code := os.waitstatus_to_exitcode(status)) > 0:
                raise OSError(code, os.strerror(code))
        return False
    try:
        between = os.getpid()
        go_on_in_successor()
        os.setsid()
        _wait_for_parent(init, between)
        return True
    except OSError as error:
        end_at_once(error.errno or 1)


def _wait_for_parent(init: int, between: int) -> None:
    """In a new process: wait until the process in between has ended. If init has ended, too, so does this process."""
    while os.getppid() == between:  # not until it is init: without a sandbox, init's orphans go to somebody else
        os.sched_yield()
    processes.die_with_parent(signal.SIGKILL)
    if os.getppid() != init:
        end_at_once(0)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning about threads: `fork_safety` has checked whether they matter
        return os.fork()
