"""Compiles decisions about system calls to classic BPF, the language of Linux's filters."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import NamedTuple

ALLOW = 0x7FFF0000
NOTIFY = 0x7FC00000
"""The process that holds the filter's listener answers."""
KILL = 0x80000000
ANY = 0xFFFFFFFF

# Classic BPF: load a word, compare, jump, return.
LOAD, AND, JEQ, JGE, JA, RET = 0x20, 0x54, 0x15, 0x35, 0x05, 0x06


def error(number: int) -> int:
    """Return the outcome that makes a call fail with this errno."""
    return 0x00050000 | number


class Comparison(NamedTuple):
    """A comparison of the low 32 bits of an argument: ``argument & mask == value``."""

    argument: int
    mask: int
    value: int


@dataclass(frozen=True, slots=True)
class Conditional:
    """A system call whose outcome depends on its arguments.

    Attributes:
        names: The calls.
        reason: Why it depends on them.
        cases: The cases in order: if all comparisons hold, this is the outcome.
        otherwise: The outcome if no case holds.
    """

    names: str
    reason: str
    cases: tuple[tuple[tuple[Comparison, ...], int], ...]
    otherwise: int


def compiled(architecture: int, outcomes: dict[int, int | Conditional], *, kill_from: int | None = None) -> bytes:
    """Return the program with these outcomes, ready for ``prctl(PR_SET_SECCOMP)``.

    Args:
        architecture: The only one whose calls do not kill (linux/audit.h).
        outcomes: The outcome of each number; a missing number gives ENOSYS.
        kill_from: Numbers from this one on kill.
    """
    code = Assembler()
    code.add(LOAD, 4)
    code.add(JEQ, architecture, 1, 0)
    code.add(RET, KILL)
    code.add(LOAD, 0)
    if kill_from is not None:
        code.add(JGE, kill_from, 0, 1)
        code.add(RET, KILL)
    _search(code, _ranges(outcomes))
    return code.bytes()


class Assembler:
    """An assembler of BPF. A forward jump is filled in once its target is known."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []

    def add(self, operation: int, value: int, true: int = 0, false: int = 0) -> int:
        """Add an instruction, and return its index."""
        self._code.append((operation, true, false, value))
        return len(self._code) - 1

    def land(self, jump: int) -> None:
        """Make an earlier unconditional jump lead to the next instruction."""
        operation, true, false, _ = self._code[jump]
        self._code[jump] = (operation, true, false, len(self._code) - jump - 1)

    def bytes(self) -> bytes:
        """Return the program in the kernel's format."""
        return b"".join(struct.pack("=HBBI", *instruction) for instruction in self._code)


def _search(code: Assembler, ranges: list[tuple[int, int | Conditional]]) -> None:
    """Find the outcome of the loaded number by bisection: a dozen comparisons instead of hundreds."""
    if len(ranges) == 1:
        outcome = ranges[0][1]
        if isinstance(outcome, Conditional):
            _decide(code, outcome)
        else:
            code.add(RET, outcome)
        return
    middle = len(ranges) // 2
    code.add(JGE, ranges[middle][0], 0, 1)
    right = code.add(JA, 0)
    _search(code, ranges[:middle])
    code.land(right)
    _search(code, ranges[middle:])


def _decide(code: Assembler, rule: Conditional) -> None:
    for tests, outcome in rule.cases:
        failed = []
        for test in tests:
            code.add(LOAD, 16 + 8 * test.argument)
            if test.mask != ANY:
                code.add(AND, test.mask)
            code.add(JEQ, test.value, 1, 0)
            failed.append(code.add(JA, 0))
        code.add(RET, outcome)
        for jump in failed:
            code.land(jump)
    code.add(RET, rule.otherwise)


def _ranges(outcomes: dict[int, int | Conditional]) -> list[tuple[int, int | Conditional]]:
    """Return where each run of equal outcomes starts, from number 0 upwards."""
    ranges: list[tuple[int, int | Conditional]] = []
    absent = error(errno.ENOSYS)
    for number in range(max(outcomes) + 2):
        outcome = outcomes.get(number, absent)
        if not ranges or ranges[-1][1] != outcome:
            ranges.append((number, outcome))
    return ranges
