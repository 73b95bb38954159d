"""Sessions of a daemon that is killed: how long it takes until the next daemon has adopted them."""

from __future__ import annotations

import os
import signal
import tempfile
import time

from bench.cases import Series, ms
from bench.systems import System


async def adopt(_system: System, *, n: int, times: int) -> Series:
    """Kill the daemon, and ask for the list of its sessions: the next daemon is started, and answers when it has them all.

    Before and after it, each session runs a cell: none may be lost.
    """
    os.environ["CELLBLOCK_HOME"] = tempfile.mkdtemp()
    os.chdir(tempfile.mkdtemp())

    import cellblock
    from cellblock.fronts.functions.connection import connection
    from cellblock.operations.sessions import About
    from cellblock.service.daemon import control
    from cellblock.service.settings import current

    try:
        names = [cellblock.get_or_create(f"bench-{number}").name for number in range(n)]
        for name in names:
            cellblock.execute(name, "x = 0")
        adopted: list[float] = []
        first: list[float] = []
        for number in range(times):
            os.kill(connection(current()).call(About())["pid"], signal.SIGKILL)
            began = time.perf_counter()
            found = len(cellblock.list_kernels())
            adopted.append(ms(began) / 1000)
            if found != n:
                raise ValueError(f"{n - found} of {n} sessions were lost")
            began = time.perf_counter()
            for name in names:
                result = cellblock.execute(name, "x += 1\nx")
                if result.return_value != str(number + 1):
                    raise ValueError(f"session {name} is not what it was: {result}")
            first.append(ms(began) / 1000)
        return {"s": adopted, "a cell in each, s": first}
    finally:
        control.stop()
