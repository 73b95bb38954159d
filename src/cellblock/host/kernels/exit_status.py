"""Descriptions of dead kernels and of recovery, for people."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a kernel's process.

    Attributes:
        cause: The cause, for people.
        exit_status: As in `CodeExecutionResult.exit_status`.
    """

    cause: str
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """The state that a session restores after its kernel died.

    Attributes:
        execution_count: The number of the last cell before the state.
        lost: Number of later cells, whose effects are lost.
        waits_for: Why the restore is not possible yet; empty if it is.
    """

    execution_count: int
    lost: int
    waits_for: str = ""

    @property
    def sentence(self) -> str:
        """The description for people."""
        where = f"its state after cell {self.execution_count}" if self.execution_count else "its first state"
        if self.waits_for:
            why = f"{self.waits_for[:1].upper()}{self.waits_for[1:]}"
            return f"{why} The session's state after cell {self.execution_count} is saved, and the next cell tries again."
        if not self.lost:
            return f"The session continues from {where}: variables have the values from then."
        cells = "one later cell" if self.lost == 1 else f"{self.lost} later cells"
        return f"The session continues from {where}; what {cells} changed in memory is lost."


_EXIT_BROKEN = 70  # of the worker, see `init.worker`

_SIGNALS = {
    signal.SIGSEGV: "a segmentation fault in C code",
    signal.SIGABRT: "C code called abort()",
    signal.SIGBUS: "a bus error: a mapped file shrank, or the disk is full",
    signal.SIGFPE: "an arithmetic error in C code",
    signal.SIGILL: "an instruction that this processor does not support",
    signal.SIGKILL: "killed, for example by kill -9 or a memory limit",
}


class _OutOfMemory:
    """A detector of processes that the machine killed for lack of memory since the last call."""

    def __init__(self) -> None:
        self._counted = self._count()

    @staticmethod
    def _count() -> int:
        try:
            with open("/proc/vmstat") as file:
                return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
        except OSError:
            return 0  # not on Linux

    def struck(self) -> bool:
        """Return whether the machine killed a process for lack of memory."""
        before, self._counted = self._counted, self._count()
        return self._counted > before


_out_of_memory = _OutOfMemory()


def describe_status(status: int | None) -> str:
    """Describe a wait status, for people."""
    if status is None or not _is_valid(status):
        return "its processes were killed"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        if number == signal.SIGKILL and _out_of_memory.struck():
            return "out of memory: SIGKILL, and the machine has just killed a process because its memory was full"
        hint = _SIGNALS.get(number)  # type: ignore[call-overload]  # Signals are ints
        return f"{name}, {hint}" if hint else name
    code = os.waitstatus_to_exitcode(status)
    if code == _EXIT_BROKEN:
        return "the code broke the kernel's channel or its modules; the traceback is on stderr"
    # The worker also exits with 0 when its channel ends, which it takes for the end of the host.
    also = ", or the code shut the kernel's channel down" if code == 0 else ""
    return f"its process exited with status {code} (os._exit(), or exit() in C code{also})"


def exit_status(status: int | None) -> int | None:
    """Convert a wait status to `CodeExecutionResult.exit_status`."""
    return None if status is None or not _is_valid(status) else os.waitstatus_to_exitcode(status)


def _is_valid(status: int) -> bool:
    """Return whether a process can have this status. Init shares a user with hostile code and may report nonsense."""
    return 0 <= status <= 0xFFFF and (os.WIFSIGNALED(status) or os.WIFEXITED(status))
