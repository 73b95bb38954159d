"""The numbers of system calls are those of the Linux kernel's own headers, on both architectures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cellblock.walls.linux.syscall_numbers import BY_MACHINE

# From Debian's linux-libc-dev: with Debian 13, for all architectures; before, for its own. aarch64 has the generic table.
HEADERS = {
    "x86_64": ("/usr/lib/linux/uapi/x86/asm/unistd_64.h", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": (
        "/usr/lib/linux/uapi/arm64/asm/unistd_64.h",
        "/usr/include/aarch64-linux-gnu/asm/unistd_64.h",
        "/usr/include/asm-generic/unistd.h",
    ),
}
_NUMBER = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)


def _of_headers(machine: str) -> dict[str, int]:
    for path in map(Path, HEADERS[machine]):
        if path.exists():
            found = {name: int(number) for name, number in _NUMBER.findall(path.read_text())}
            return found | ({"newfstatat": found["fstatat"]} if "fstatat" in found else {})
    pytest.skip(f"no headers for {machine}: they come with linux-libc-dev")


@pytest.mark.parametrize("machine", BY_MACHINE)
def test_numbers_are_those_of_the_headers(machine: str) -> None:
    known, ours = _of_headers(machine), BY_MACHINE[machine]
    assert len(known) > 300
    assert {name: number for name, number in ours.items() if known.get(name, number) != number} == {}
    newest = max(number for name, number in known.items() if name in ours)
    assert {name for name, number in ours.items() if number <= newest} <= known.keys()


@pytest.mark.parametrize("machine", BY_MACHINE)
def test_no_call_of_the_headers_is_missing(machine: str) -> None:
    # Probes are for the kernel itself; the rest are markers of the generic table, and calls of 32-bit machines.
    not_ours = {"uprobe", "uretprobe", "fstatat", "arch_specific_syscall", "sync_file_range2", "syscalls"}
    ours = BY_MACHINE[machine]
    known = {
        name for name, number in _of_headers(machine).items() if not 403 <= number <= 423 and number <= max(ours.values())
    }
    assert known - ours.keys() - not_ours == set()
