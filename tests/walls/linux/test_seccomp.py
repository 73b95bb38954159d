"""The BPF program does what the tables of the policy say, for every number, on both architectures."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import struct
from collections.abc import Iterator

import pytest

from cellblock.walls.linux import abi, seccomp
from cellblock.walls.linux.bpf import ALLOW, KILL, Conditional, error
from cellblock.walls.linux.seccomp import ALLOWED, REFUSED, conditionals, no_programs, program
from cellblock.walls.linux.syscall_numbers import BY_MACHINE

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
EPERM, ENOSYS, EAFNOSUPPORT = error(errno.EPERM), error(errno.ENOSYS), error(errno.EAFNOSUPPORT)

CLONE, SOCKET = "clone", "socket"


@functools.cache
def instructions_of(code: bytes) -> list[tuple[int, int, int, int]]:
    """Return the instructions of a program."""
    return [*struct.iter_unpack("=HBBI", code)]


def run(code: bytes, machine: int, number: int, *arguments: int) -> int:
    """Interpret a program as the kernel does, for one system call, and return its outcome."""
    values = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, machine, 0, *(value & 2**64 - 1 for value in values))
    instructions = instructions_of(code)
    at = accumulator = 0
    while True:
        operation, true, false, value = instructions[at]
        at += 1
        match operation:
            case 0x20:  # load a word
                assert value % 4 == 0
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                at += true if accumulator == value else false
            case 0x35:
                at += true if accumulator >= value else false
            case 0x05:
                at += value
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"no such operation: {operation:#x}")


class Filter:
    """The program of one architecture, to be asked by name."""

    def __init__(self, machine: str, unix_sockets: bool = True) -> None:
        self.machine = machine
        self.table = BY_MACHINE[machine]
        self.code = program(machine, unix_sockets)

    def __call__(self, name: str | int, *arguments: int) -> int:
        number = self.table[name] if isinstance(name, str) else name
        return run(self.code, ARCHITECTURES[self.machine], number, *arguments)

    def having(self, names: str) -> list[str]:
        return [name for name in names.split() if name in self.table]


@pytest.fixture(params=BY_MACHINE)
def ask(request: pytest.FixtureRequest) -> Filter:
    return Filter(request.param)


def _listed() -> Iterator[str]:
    for _, names in (*ALLOWED, *REFUSED):
        yield from names.split()
    for rule in conditionals(True):
        yield from rule.names.split()


def test_every_call_is_in_one_table_only() -> None:
    names = [*_listed()]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_rule_has_a_reason() -> None:
    assert all(reason for reason, _ in (*ALLOWED, *REFUSED))
    assert all(rule.reason for rule in conditionals(True))


def test_every_name_is_a_call_of_some_architecture() -> None:
    # These are of 32-bit architectures: harmless here, and told so.
    assert {name for name in _listed() if not any(name in table for table in BY_MACHINE.values())} <= {
        "fstatat64",
        "stime",
        "vm86",
        "vm86old",
    }


def test_programs_are_what_a_kernel_takes(ask: Filter) -> None:
    instructions = instructions_of(ask.code)
    assert len(instructions) <= 4096
    for at, (operation, true, false, value) in enumerate(instructions):
        assert operation in (0x20, 0x54, 0x15, 0x35, 0x05, 0x06)
        reach = [value] if operation == 0x05 else [true, false]
        assert all(at + 1 + distance < len(instructions) for distance in reach) or operation in (0x06, 0x20, 0x54)
        if operation == 0x20:
            assert value < 64
    assert instructions[-1][0] == 0x06


def test_every_number_has_the_outcome_of_its_table(ask: Filter) -> None:
    expected = dict.fromkeys(range(1200), ENOSYS)
    for _, names in ALLOWED:
        expected |= {ask.table[name]: ALLOW for name in ask.having(names)}
    for _, names in REFUSED:
        expected |= {ask.table[name]: EPERM for name in ask.having(names)}
    depends = {ask.table[name] for rule in conditionals(True) for name in ask.having(rule.names)}
    for number in expected.keys() - depends:
        assert ask(number) == expected[number], number
        assert ask(number, *[2**64 - 1] * 6) == expected[number], number


def test_unknown_numbers_do_not_exist(ask: Filter) -> None:
    for number in (1000, 5000, 0x3FFFFFFF):
        assert ask(number) == ENOSYS


def test_calls_that_walk_past_the_filter_do_not_exist(ask: Filter) -> None:
    cases: list[str] = [
        "clone3",
        "openat2",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "sendfile",
        "memfd_secret",
    ]
    for name in cases:
        assert ask(name) == ENOSYS


def test_x32_kills() -> None:
    for offset in (0, 1, 39, 56, 512, 547, 0x3FFFFFFF, 0xBFFFFFFF):
        assert Filter("x86_64")(0x40000000 + offset) == KILL


def test_other_architectures_kill(ask: Filter) -> None:
    for machine in (0, 0x40000003, 0x40000028, 0xC0000015, 0xC00000F3, 0x800000B7):
        assert {run(ask.code, machine, number) for number in range(600)} == {KILL}


def test_the_architectures_do_not_take_each_others_calls() -> None:
    assert run(program("x86_64"), ARCHITECTURES["aarch64"], 0) == KILL
    assert run(program("aarch64"), ARCHITECTURES["x86_64"], 0) == KILL


def _by_tables(rule: Conditional, arguments: tuple[int, ...]) -> int:
    for tests, outcome in rule.cases:
        if all(arguments[test.argument] & test.mask & 0xFFFFFFFF == test.value for test in tests):
            return outcome
    return rule.otherwise


def _interesting(rule: Conditional, argument: int) -> list[int]:
    """Return what a rule compares an argument with, neighbours of it, and each with the high half set as well."""
    values = {test.value for tests, _ in rule.cases for test in tests if test.argument == argument}
    masks = {test.mask for tests, _ in rule.cases for test in tests if test.argument == argument}
    near = {0, 1, 0xFFFFFFFF, *values, *(value + 1 for value in values), *(mask & 0xFFFFFFFF for mask in masks)}
    return sorted(near | {value | 1 << 32 for value in values})


@pytest.mark.parametrize("unix_sockets", [True, False])
@pytest.mark.parametrize("machine", BY_MACHINE)
def test_what_depends_on_arguments_depends_on_them_as_the_tables_say(machine: str, unix_sockets: bool) -> None:
    ask = Filter(machine, unix_sockets)
    rules = conditionals(unix_sockets) if unix_sockets else {*conditionals(False)} - {*conditionals(True)}
    assert rules
    for rule in rules:
        used = sorted({test.argument for tests, _ in rule.cases for test in tests})
        for chosen in itertools.product(*(_interesting(rule, argument) for argument in used)):
            arguments = [0] * 6
            for place, argument in zip(used, chosen, strict=True):
                arguments[place] = argument
            for name in ask.having(rule.names):
                assert ask(name, *arguments) == _by_tables(rule, tuple(arguments)), (name, arguments)


@pytest.mark.parametrize("bit", [bit for bit in range(32) if abi.CLONE_NEW_ALL >> bit & 1])
def test_no_fork_makes_a_namespace(ask: Filter, bit: int) -> None:
    assert ask("clone", 1 << bit | 17) == EPERM
    assert ask("clone", abi.CLONE_NEW_ALL | 0x3D0F00) == EPERM


def test_forks_and_threads_can_be_made(ask: Filter) -> None:
    assert ask("clone", 17) == ALLOW
    assert ask("clone", 0x3D0F00) == ALLOW  # as the C library makes threads


def test_threads_may_have_the_usual_scheduling_and_no_other(ask: Filter) -> None:
    assert [ask("sched_setscheduler", 7, policy) for policy in (0, 1, 2, 3, 5, 6)] == [ALLOW, *[EPERM] * 5]
    assert ask("sched_setattr", 7) == EPERM


def test_the_internet_is_tcp_and_udp(ask: Filter) -> None:
    for family in (2, 10):
        allowed = {(1, 0), (1, 6), (2, 0), (2, 17)}
        for kind in range(16):
            for protocol in (*range(20), 41, 58, 132, 136, 255, 256, 262, 2**31):
                for flags in (0, 0o2000000, 0o4000):
                    wanted = ALLOW if (kind, protocol) in allowed else EAFNOSUPPORT
                    assert ask("socket", family, kind | flags, protocol) == wanted


def test_no_other_family_exists(ask: Filter) -> None:
    assert {ask("socket", family, kind) for family in range(64) if family not in (1, 2, 10, 16) for kind in range(6)} == {
        EAFNOSUPPORT
    }
    assert {ask("socket", 16, kind, protocol) for kind in range(6) for protocol in range(24)} == {error(errno.EOPNOTSUPP)}


@pytest.mark.parametrize("machine", BY_MACHINE)
def test_local_sockets_can_be_forbidden(machine: str) -> None:
    assert {Filter(machine)("socket", 1, kind) for kind in (1, 2, 5)} == {ALLOW}
    without = Filter(machine, unix_sockets=False)
    assert {without("socket", 1, kind) for kind in range(6)} == {EPERM}
    # A pair for datagrams could be sent to any socket of the file system.
    assert [without("socketpair", 1, kind | 0o2000000) for kind in (1, 2, 5)] == [ALLOW, EPERM, ALLOW]


@pytest.mark.parametrize("command", [0x5412, 0x541C, 0x5423])
@pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
def test_only_the_low_half_of_a_command_counts(ask: Filter, command: int, high: int) -> None:
    assert ask("ioctl", 0, high | command) == EPERM
    assert ask("ioctl", 0, high | 0x5401) == ALLOW


def test_no_set_id_bits(ask: Filter) -> None:
    for mode in (0o4000, 0o2000, 0o6777):
        for name in ask.having("chmod fchmod mkdir creat"):
            assert (ask(name, 0, mode), ask(name, 0, 0o1777)) == (EPERM, ALLOW)
        for name in ask.having("fchmodat fchmodat2 mkdirat"):
            assert (ask(name, 0, 0, mode), ask(name, 0, 0, 0o1777)) == (EPERM, ALLOW)
        for flags in (0o100, 0o20000000, 0o20200000 | 1):
            assert ask("openat", 0, 0, flags, mode) == EPERM
        assert ask("openat", 0, 0, 0, mode) == ALLOW  # it is not looked at then


def test_a_rule_can_be_taken_away_for_tests() -> None:
    unshare = BY_MACHINE["x86_64"]["unshare"]
    assert run(program("x86_64", without=frozenset({"unshare"})), ARCHITECTURES["x86_64"], unshare, 0x10000000) == ALLOW


def test_machines_without_a_table_are_told() -> None:
    assert seccomp.supported("x86_64")
    assert seccomp.supported("aarch64")
    assert not seccomp.supported("riscv64")


NUMBERS = {
    "x86_64": "read=0 clone=56 socket=41 openat=257 execve=59 prctl=157 seccomp=317 ptrace=101 unshare=272 mount=165",
    "aarch64": "read=63 clone=220 socket=198 openat=56 execve=221 prctl=167 seccomp=277 ptrace=117 unshare=97 mount=40",
}
"""As the C library's headers say."""


def test_numbers_are_this_machines() -> None:
    for machine in NUMBERS:
        known = {name: int(number) for name, number in (one.split("=") for one in NUMBERS[machine].split())}
        assert {name: BY_MACHINE[machine][name] for name in known} == known
        assert os.uname().machine in BY_MACHINE


def test_programs_can_be_forbidden_and_nothing_else_is(ask: Filter) -> None:
    code, machine = no_programs(ask.machine), ARCHITECTURES[ask.machine]
    refused = {name for name, number in ask.table.items() if run(code, machine, number) != ALLOW}
    assert refused == {"execve", "execveat"}
    assert {run(code, machine, ask.table[name]) for name in refused} == {EPERM}
    limits = ask.table["prlimit64"]
    assert run(code, machine, limits, 0, 7) == ALLOW
    for pid in (1, 4711, 1 << 31, 1 << 32, (1 << 64) - 1):
        assert run(code, machine, limits, pid, 7) == EPERM
