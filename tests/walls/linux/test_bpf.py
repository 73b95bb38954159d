"""Programs for the kernel's filter, run by an interpreter."""

from __future__ import annotations

import errno
import struct

from cellblock.walls.linux.bpf import ALLOW, KILL, Assembler, Comparison, Conditional, compiled, error

HERE, ELSEWHERE = 0xC000003E, 0xC00000B7
ABSENT = error(errno.ENOSYS)


def run(program: bytes, number: int, *arguments: int, architecture: int = HERE) -> int:
    """Return what a program says of a call."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = value = 0
    while True:
        operation, true, false, operand = code[at]
        at += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x54:
                value &= operand
            case 0x15 | 0x35:
                at += true if (value == operand if operation == 0x15 else value >= operand) else false
            case 0x05:
                at += operand
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"unknown operation {operation:#x}")


def test_each_number_has_its_outcome_and_all_others_do_not_exist() -> None:
    cases: list[list[int]] = [[0], [5], [0, 1, 2], [0, 2, 4, 6, 300], list(range(1, 400, 3))]
    for numbers in cases:
        program = compiled(HERE, dict.fromkeys(numbers, ALLOW))
        outcomes = [run(program, number) for number in range(500)]
        assert outcomes == [ALLOW if number in numbers else ABSENT for number in range(500)]


def test_other_architectures_and_high_numbers_kill() -> None:
    program = compiled(HERE, {1: ALLOW}, kill_from=0x40000000)
    assert run(program, 1, architecture=ELSEWHERE) == KILL
    assert run(program, 0x40000001) == KILL
    assert run(program, 0x3FFFFFFF) == ABSENT
    assert run(compiled(HERE, {1: ALLOW}), 0x40000001) == ABSENT


def test_the_first_case_all_of_whose_tests_hold_decides() -> None:
    first, second, other = error(1), error(2), error(3)
    cases = (((Comparison(0, 0xF, 1), Comparison(1, 0xFFFFFFFF, 7)), first), ((Comparison(0, 0xF, 1),), second))
    program = compiled(HERE, {9: Conditional("call", "", cases, other), 10: ALLOW})
    assert [run(program, 9, *arguments) for arguments in ((0x11, 7), (0x11, 8), (0x12, 7))] == [first, second, other]
    assert run(program, 10, 0x11, 7) == ALLOW


def test_only_the_low_half_of_an_argument_is_compared() -> None:
    program = compiled(HERE, {9: Conditional("call", "", (((Comparison(5, 0xFFFFFFFF, 3),), ALLOW),), KILL)})
    assert run(program, 9, 0, 0, 0, 0, 0, 3 | 1 << 32) == ALLOW


def test_a_jump_lands_on_what_comes_next() -> None:
    code = Assembler()
    jump = code.add(0x05, 0)
    code.add(0x06, KILL)
    code.land(jump)
    code.add(0x06, ALLOW)
    assert run(code.bytes(), 0) == ALLOW
