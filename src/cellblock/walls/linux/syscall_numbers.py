"""Numbers of Linux system calls, by architecture.

`syscall_numbers.txt` has them from the headers of Linux 6.1 and the tables up to 6.17; "-": an architecture lacks the call.
"""

from __future__ import annotations

import functools
import os


def _read() -> dict[str, dict[str, int]]:
    with open(f"{__file__.rpartition('.')[0]}.txt", encoding="ascii") as table:
        machines = table.readline().split()[1:]
        words = table.read().split()
    columns = [words[place :: len(machines) + 1] for place in range(len(machines) + 1)]
    return {
        machine: {name: int(given) for name, given in zip(columns[0], numbers, strict=True) if given != "-"}
        for machine, numbers in zip(machines, columns[1:], strict=True)
    }


BY_MACHINE = _read()  # at import: later, this process may be in a sandbox without the file
"""The numbers of each architecture, as named by `platform.machine`."""


@functools.cache
def number(name: str) -> int:
    """Return the number of a system call on this machine.

    Raises:
        KeyError: The call does not exist on this machine, or its architecture is unknown.
    """
    return BY_MACHINE[os.uname().machine][name]
