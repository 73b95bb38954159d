"""The kernels that one init serves: one at first, and later those that were made of copies, each with its own connection."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Collection

from cellblock.init import processes
from cellblock.init.programs import Programs
from cellblock.wire.control import FromInit
from cellblock.wire.datagrams import encode_control


class Seat:
    """One kernel: its worker, the programs that are run for it, and the host's connection.

    Attributes:
        control: The connection to the host.
        worker: The pid of its worker; None if that is about to be made of a copy.
        copy: The number of the copy that it is made of; None for the first kernel.
        programs: What is run for it beside the worker.
        leaving: Whether the host has given it up: it is left when its worker has ended.
        frozen: The processes that were stopped, and are to go on if it is thawed.
    """

    def __init__(self, control: socket.socket, worker: int | None, programs: Programs) -> None:
        self.control = control
        self.worker = worker
        self.copy: int | None = None
        self.programs = programs
        self.leaving = False
        self.frozen: set[int] = set()

    def tell(self, message: FromInit) -> None:
        """Tell the host something. If it does not listen, the end of the connection is about to be noticed."""
        try:
            self.control.send(encode_control(message), socket.MSG_NOSIGNAL)
        except OSError:
            return

    def interrupt(self) -> None:
        """Send SIGINT to the worker and what it has started."""
        self.programs.interrupt()
        if self.worker is None:
            return
        try:
            # The group, as a terminal's ^C does: subprocesses of the cell are meant as well.
            os.killpg(self.worker, signal.SIGINT)
        except ProcessLookupError:
            processes.kill([self.worker], signal.SIGINT)

    def below(self, spared: Collection[int], *, alone: bool) -> set[int]:
        """Return every process of this kernel but its worker.

        Args:
            spared: The other workers and all copies.
            alone: Whether there is no other kernel: then processes that have lost their parents are this one's. Otherwise they
                are if they have stayed in the worker's session.
        """
        if alone:
            others = {*spared, *(pid for one in spared for pid in processes.descendants(one))}
            return {*processes.descendants(os.getpid())} - others - {self.worker}
        own = () if self.worker is None else processes.descendants(self.worker)
        orphans = (pid for pid in processes.children(os.getpid()) if _session(pid) == self.worker)
        return {*own, *orphans, *self.programs.below()} - {*spared, self.worker}


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None  # it has ended
