"""Programs for the kernel's filter, run by an interpreter."""

from __future__ import annotations

import errno

from cellblock.walls.linux.bpf import ALLOW, KILL, Assembler, Comparison, Conditional, compiled, error

from .test_seccomp import run

HERE, ELSEWHERE = 0xC000003E, 0xC00000B7
ABSENT = error(errno.ENOSYS)


def outcome(program: bytes, number: int, *arguments: int, architecture: int = HERE) -> int:
    """Return what a program says of a call."""
    return run(program, architecture, number, *arguments)


def test_each_number_has_its_outcome_and_all_others_do_not_exist() -> None:
    cases: list[list[int]] = [[0], [5], [0, 1, 2], [0, 2, 4, 6, 300], list(range(1, 400, 3))]
    for numbers in cases:
        program = compiled(HERE, dict.fromkeys(numbers, ALLOW))
        outcomes = [outcome(program, number) for number in range(500)]
        assert outcomes == [ALLOW if number in numbers else ABSENT for number in range(500)]


def test_other_architectures_and_high_numbers_kill() -> None:
    program = compiled(HERE, {1: ALLOW}, kill_from=0x40000000)
    assert outcome(program, 1, architecture=ELSEWHERE) == KILL
    assert outcome(program, 0x40000001) == KILL
    assert outcome(program, 0x3FFFFFFF) == ABSENT
    assert outcome(compiled(HERE, {1: ALLOW}), 0x40000001) == ABSENT


def test_the_first_case_all_of_whose_tests_hold_decides() -> None:
    first, second, other = error(1), error(2), error(3)
    cases = (((Comparison(0, 0xF, 1), Comparison(1, 0xFFFFFFFF, 7)), first), ((Comparison(0, 0xF, 1),), second))
    program = compiled(HERE, {9: Conditional("call", "", cases, other), 10: ALLOW})
    assert [outcome(program, 9, *arguments) for arguments in ((0x11, 7), (0x11, 8), (0x12, 7))] == [first, second, other]
    assert outcome(program, 10, 0x11, 7) == ALLOW


def test_only_the_low_half_of_an_argument_is_compared() -> None:
    program = compiled(HERE, {9: Conditional("call", "", (((Comparison(5, 0xFFFFFFFF, 3),), ALLOW),), KILL)})
    assert outcome(program, 9, 0, 0, 0, 0, 0, 3 | 1 << 32) == ALLOW


def test_a_jump_lands_on_what_comes_next() -> None:
    code = Assembler()
    jump = code.add(0x05, 0)
    code.add(0x06, KILL)
    code.land(jump)
    code.add(0x06, ALLOW)
    assert outcome(code.bytes(), 0) == ALLOW
