"""Tells the host why there is no session: which part of a launcher, an init or a sandbox failed."""

from __future__ import annotations

import os
import socket
from typing import NoReturn

from cellblock.walls.sandbox.steps import StepName, failure_of
from cellblock.wire.control import FORK_DESCRIPTORS, Refused
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS, encode_control


def refusal(error: OSError | ValueError, default: StepName) -> Refused:
    """Return the message for an error.

    Args:
        error: The error.
        default: The failed step, if the error does not name it.
    """
    if isinstance(error, ValueError):
        return Refused(str(error), "", 0)  # it is about the request, not about this machine
    failure = failure_of(error, default)
    return Refused(failure.said, failure.step, failure.code)


def refuse_all(role: str, told: Refused) -> None:
    """Report to the host, whose socket is standard input, as a launcher process that cannot start kernels.

    Args:
        role: The role of this process: ``zygote`` or ``spawn``.
        told: The reason.
    """
    with socket.socket(fileno=0) as control:
        # Read pending messages first: closing a socket with unread data is an error for the host.
        data, descriptors, _, _ = socket.recv_fds(control, MAX_CONTROL, MAX_DESCRIPTORS)
        if role == "zygote":
            control.send(encode_control(told), socket.MSG_NOSIGNAL)
            return
        data, descriptors, _, _ = socket.recv_fds(control, MAX_CONTROL, MAX_DESCRIPTORS)
        if data and len(descriptors) >= FORK_DESCRIPTORS:
            _tell(descriptors, told)


def refuse_session(handover: int, told: Refused) -> NoReturn:
    """Wait for a session, tell its host the reason for the refusal, and exit.

    It may take long until a session is wanted. If this process ended earlier, the host would not learn the reason, and the
    zygote would fork another one.

    Args:
        handover: The socket on which the session's connections arrive.
        told: The reason.
    """
    os.closerange(3, handover)  # the process that forked us has the other end of the socket, and we end with it
    os.closerange(handover + 1, os.sysconf("SC_OPEN_MAX"))
    with socket.socket(fileno=handover) as waiting:
        waiting.shutdown(socket.SHUT_WR)  # a zygote sees that this init is useless, and forks another one
        data, descriptors, _, _ = socket.recv_fds(waiting, MAX_CONTROL, MAX_DESCRIPTORS)
    if data and len(descriptors) >= FORK_DESCRIPTORS:
        _tell(descriptors, told)
    os._exit(0)


def _tell(descriptors: list[int], told: Refused) -> None:
    """Tell a host through the descriptors of the ``fork`` message."""
    with socket.socket(fileno=descriptors[1]) as control:
        control.recv(MAX_CONTROL)  # as above: the host's setup is there
        control.send(encode_control(told), socket.MSG_NOSIGNAL)
