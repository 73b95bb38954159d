"""The kernels of one init: at first one, later also those created from copies, each with its own connection."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Collection, Mapping

from cellblock.launch.init import processes
from cellblock.launch.init.programs import Programs
from cellblock.wire.control import FromInit
from cellblock.wire.datagrams import encode_control


class Seat:
    """One kernel: its worker, its programs, and the host's connection.

    Attributes:
        control: The connection to the host.
        worker: The pid of its worker; None while it is being created from a copy.
        copy: The number of the copy from which it is created; None for the first kernel.
        programs: The programs that run for it outside the worker.
        leaving: Whether the host has given it up: it is removed when its worker has ended.
        frozen: The stopped processes, which continue if it is thawed.
    """

    def __init__(self, control: socket.socket, worker: int | None, programs: Programs) -> None:
        self.control = control
        self.worker = worker
        self.copy: int | None = None
        self.programs = programs
        self.leaving = False
        self.frozen: set[int] = set()

    def tell(self, message: FromInit) -> None:
        """Send a message to the host. On failure, the reader is about to see the end of the connection."""
        try:
            self.control.send(encode_control(message), socket.MSG_NOSIGNAL)
        except OSError:
            return

    def interrupt(self) -> None:
        """Send SIGINT to the worker and its processes."""
        self.programs.interrupt()
        if self.worker is None:
            return
        try:
            # To the group, like a terminal's ^C: it is also meant for subprocesses of the cell.
            os.killpg(self.worker, signal.SIGINT)
        except ProcessLookupError:
            processes.kill([self.worker], signal.SIGINT)

    def below(self, spared: Collection[int], *, alone: bool) -> set[int]:
        """Return every process of this kernel except its worker.

        Args:
            spared: The other workers and all copies.
            alone: Whether all other kernels are ending: then all orphans belong to this one. Otherwise only orphans in the
                worker's session (setsid) do.
        """
        if alone:
            return {*processes.descendants(os.getpid(), spared)} - {self.worker}
        own = () if self.worker is None else processes.descendants(self.worker)
        unknown = {*processes.children(os.getpid())}.difference(spared)  # with hundreds of branches, asking each takes long
        orphans = (pid for pid in unknown if processes.session_of(pid) == self.worker)
        return {*own, *orphans, *self.programs.below()} - {*spared, self.worker}

    def everything(self, orphans: Mapping[int, Collection[int]]) -> set[int]:
        """Return every process of this kernel, with its programs.

        Args:
            orphans: The processes whose parent is init, by session (setsid).
        """
        worker = () if self.worker is None else (self.worker, *orphans.get(self.worker, ()))
        tops = {*worker, *self.programs.watchers}
        return tops.union(self.programs.below(), *map(processes.descendants, tops))
