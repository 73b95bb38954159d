"""An init, a launcher or a sandbox that cannot be made tells the host so, whatever lies unread in its sockets."""

from __future__ import annotations

import errno
import os
import socket
import sys

import pytest

from cellblock.launch.init.refusing import refusal, refuse_all, refuse_session
from cellblock.walls.sandbox.steps import StepError
from cellblock.wire.control import FROM_INIT, FROM_LAUNCHER, Fork, Hello, Refused, Setup
from cellblock.wire.datagrams import MAX_CONTROL, encode_control

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SOCK_SEQPACKET")

TOLD = Refused("no more", "worker", errno.EAGAIN)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def hand_over(handover: socket.socket) -> socket.socket:
    """Hand a session over as a host does; return the host's end of the control socket."""
    ours, theirs = pair()
    ours.send(encode_control(Setup({}, "/", None, "")))
    with theirs:
        socket.send_fds(handover, [encode_control(Fork(1))], [theirs.fileno()] * 4)
    return ours


def test_a_refusal_names_the_step_of_a_system_error_and_none_for_a_wrong_request() -> None:
    error = StepError("proc", PermissionError(errno.EPERM, "fsmount: Operation not permitted"))
    assert refusal(error, "files") == Refused("fsmount: Operation not permitted", "proc", errno.EPERM)
    assert refusal(OSError(errno.EAGAIN, "no more"), "worker") == TOLD
    assert refusal(ValueError("that cannot be"), "files") == Refused("that cannot be", "", 0)


def test_an_init_of_no_use_is_seen_as_such_and_tells_whoever_gets_it() -> None:
    ours, theirs = pair()
    with ours:
        pid = os.fork()
        if pid == 0:
            refuse_session(theirs.detach(), TOLD)
        theirs.close()
        assert ours.recv(1) == b""  # what a zygote looks for, before it hands a session over
        with hand_over(ours) as control:
            assert FROM_INIT.decode(control.recv(MAX_CONTROL)) == TOLD
        assert os.waitpid(pid, 0)[1] == 0


def test_an_init_of_no_use_that_nobody_wants_ends_with_its_maker() -> None:
    ours, theirs = pair()
    pid = os.fork()
    if pid == 0:
        refuse_session(theirs.detach(), TOLD)
    theirs.close()
    ours.close()
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("role", ["zygote", "spawn"])
def test_a_process_that_was_to_start_kernels_tells_on_its_standard_input(role: str) -> None:
    ours, theirs = pair()
    with ours:
        ours.send(encode_control(Hello(None)))
        control = hand_over(ours) if role == "spawn" else ours
        with control:
            pid = os.fork()
            if pid == 0:
                os.dup2(theirs.fileno(), 0)
                refuse_all(role, TOLD)
                os._exit(0)
            theirs.close()
            received = FROM_INIT if role == "spawn" else FROM_LAUNCHER
            assert received.decode(control.recv(MAX_CONTROL)) == TOLD
            assert os.waitpid(pid, 0)[1] == 0
