"""Copies of a live worker: it forks, and the copy waits until init requests a kernel, which is a fork of the copy.

Each copy continues in a successor of itself, which is a child of init. So only init can wait for it, and it outlives its
original, the worker.
"""

from __future__ import annotations

import _socket
import ctypes
import fcntl
import os
import random
import socket
import struct
from typing import Any

from cellblock.launch.init.specialise import reseed, seed_unloaded
from cellblock.launch.init.successor import (
    block_signals,
    die_with_parent,
    end_at_once,
    fork,
    go_on_in_successor,
    hide,
    join_again,
    look_up,
    stand_apart,
    unblock_signals,
)
from cellblock.wire.copies import TO_COPY, Copied, Start, Taken, Untaken
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS, encode_control
from cellblock.worker.forks import hooks, hot_pages
from cellblock.worker.forks import safety as fork_safety

_before_fork, _after_fork_in_parent, _after_fork_in_child = (
    getattr(ctypes.pythonapi, name) for name in ("PyOS_BeforeFork", "PyOS_AfterFork_Parent", "PyOS_AfterFork_Child")
)
# Messages without their numbers. Formatting a number writes to fewer pages than encoding a message.
_COPIED = encode_control(Copied(0)).replace(b":0}", b":%d}")
_TAKEN = encode_control(Taken(0)).replace(b":0}", b":%d}")

# By names of this module, which a fork finds without writing to other modules' pages.
_close, _dup2, _setsid, _getpid, _getppid, _sched_yield = (
    getattr(os, name) for name in ("close", "dup2", "setsid", "getpid", "getppid", "sched_yield")
)
_PEEK = int(socket.MSG_PEEK)
_STDERR = 2
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT

_INT = struct.Struct("i")
_ROOM = socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT.size)


def fork_copy(channel: int, nursery: int, number: int, soon: bool) -> Start | None:
    """Copy this process, which `fork_safety.prepare` has prepared.

    Args:
        channel: The descriptor of this worker's channel, which the copy closes.
        nursery: The descriptor of the socket on which the copy registers with init.
        number: The copy's number.
        soon: Whether the next cell is expected soon.

    Returns:
        In this process: None. In each kernel created later from the copy: its specification.

    Raises:
        OSError: No copy could be created.
    """
    # Prepare everything before the fork, and with few calls: each page that is written to, here or there, is copied.
    look_up()
    init, message = os.getppid(), _COPIED % number
    ours, theirs, null = _open_connections()
    attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _INT.pack(theirs.fileno()))]
    shared = fork_safety.shares(nursery)
    told = _socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, nursery)  # to be detached: it would close the descriptor
    tell, between = told.sendmsg, -1
    _before_fork()
    block_signals()  # code may signal all processes that it sees
    try:
        between = _fork_below(init)
    finally:
        if between:  # not in the copy: only kernels created from it need Python's handlers
            unblock_signals()
            _after_fork_in_parent()
            ours.close()
            theirs.close()
            told.detach()
            os.close(null)
    if between:
        if soon:
            hot_pages.copy(lambda: _has_ended(between))
        _wait_for_end(between)
        return None
    # From here on, only in the copy and its kernels. Nothing may return or raise into code that must not run twice.
    try:
        stand_apart()
        for descriptor in (1, 2, channel):
            _dup2(null, descriptor, descriptor < channel)
        _close(null)
        if shared:
            fork_safety.part(nursery)
        tell([message], attached)
        told.detach()
        theirs.close()
        ours.recv(1)  # init can measure this memory now, which a process that hides does not allow
        hide()
        ours.send(message)
        return _wait(ours, channel, init)
    except BaseException:  # of any kind
        end_at_once(1)


def _open_connections() -> tuple[_socket.socket, _socket.socket, int]:
    """Return a pair of connected sockets and the null device, all above standard error."""
    ours, theirs = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    null = os.open(os.devnull, os.O_RDWR)
    if min(ours.fileno(), theirs.fileno(), null) <= _STDERR:  # the code has closed one of these, and the copy opens it again
        moved = (_socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, _beyond(one.detach())) for one in (ours, theirs))
        (ours, theirs), null = moved, _beyond(null)
    return ours, theirs, null


def _wait(ours: _socket.socket, channel: int, init: int) -> Start:
    """Wait in a copy for requests to create a kernel. Returns in the kernels."""
    while True:
        try:
            ours.recv(1, _PEEK)  # until then, it has no buffer
            data, attached, _, _ = ours.recvmsg(MAX_CONTROL, _ROOM)
        except InterruptedError:
            continue
        if not data:
            end_at_once(0)
        start = TO_COPY.read(data)  # here, not in the kernel: pages that are written to here are copied once
        descriptors = [one for _, _, content in attached for (one,) in _INT.iter_unpack(content)]
        try:
            if between := _fork_below(init):
                _wait_for_end(between)
        except OSError:  # the limit of processes is reached now
            between = -1
            ours.send(encode_control(Untaken(start.kernel)))
        if not between:
            return _become(start, descriptors, ours, channel)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(start: Start, descriptors: list[int], ours: _socket.socket, channel: int) -> Start:
    """Become a kernel, in a new fork of a copy."""
    state = random.getstate() if start.same_random_state else None
    join_again()
    ours.send(_TAKEN % start.kernel)  # before handlers of the code, which may end this process: init learns of that
    fork_safety.note_interrupted(hooks.run(_after_fork_in_child, forking=True))  # a handler of Python's draws a new state
    unblock_signals()
    ours.close()
    for source, place in zip(descriptors, (channel, 1, 2), strict=True):
        os.dup2(source, place, inheritable=place < channel)
        os.close(source)
    _settle_in(start, state)
    return start


def _settle_in(start: Start, state: Any) -> None:
    """Set the environment and the random state of a kernel from a copy."""
    if state is not None:
        random.setstate(state)
        seed_unloaded(start.seed)
    else:
        reseed(start.seed)
    os.environ.update(start.env)


def _fork_below(init: int) -> int:
    """Fork so that the new process is a child of init, in its own session (setsid).

    Returns:
        In this process: the id of a child, for `_wait_for_end`. In the new one: 0. Python's handlers were not called.

    Raises:
        OSError: No more processes can be created.
    """
    if between := fork():
        return between
    try:
        between = _getpid()
        go_on_in_successor()
        _setsid()
        _wait_for_parent(init, between)
        return 0
    except OSError as error:
        end_at_once(error.errno or 1)
    except BaseException:  # as in `fork_copy`
        end_at_once(1)


def _beyond(descriptor: int) -> int:
    """Duplicate a descriptor above standard input, output and error, and close the original."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    os.close(descriptor)
    return moved


def _has_ended(between: int) -> bool:
    try:
        return os.waitid(os.P_PID, between, _LOOK) is not None
    except ChildProcessError:
        return True


def _wait_for_end(between: int) -> None:
    """Wait for the child that continues in a successor. Other threads of Python run meanwhile.

    Raises:
        OSError: The successor could not be created.
    """
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(between, 0)[1])
    except ChildProcessError:  # code that waits for any child was faster
        return
    if code > 0:
        raise OSError(code, os.strerror(code))


def _wait_for_parent(init: int, between: int) -> None:
    """Wait, in a new process, for the end of the process in between. If init has ended too, exit."""
    while _getppid() == between:  # not until it is init: without a sandbox, init's orphans go to another process
        _sched_yield()
    die_with_parent()
    if _getppid() != init:
        end_at_once(0)
