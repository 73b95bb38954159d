"""Process 1 of a session ends with those that it ends with, also while it is stopped."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from cellblock.host.packages import remove_places_of_the_dead
from conftest import Launch
from processes import alive, below, eventually, parents

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals and pidfds are Linux's")

HOST = """
import asyncio, signal, sys
from cellblock import Host

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored

async def main():
    async with Host(isolate=sys.argv[1], launch=sys.argv[2]) as host, host.session(working_dir='.') as session:
        await session.execute("import os; os.posix_spawn('/bin/sleep', ['sleep', '1000'], {})")
        print(flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)


def stopped(pid: int) -> Callable[[], bool]:
    """Return whether a process is stopped."""
    return lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0")
    except FileNotFoundError:  # one that only was there for a start
        return False


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["native", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("launch", "ends"),
    [("zygote", "host"), SLOW("spawn", "host"), SLOW("zygote", "zygote, then host"), ("spawn", "guard")],
)
async def test_a_stopped_init_ends_with_whom_it_belongs_to(
    tmp_path: Path, isolate: str, launch: Launch, ends: Literal["host", "zygote, then host", "guard"]
) -> None:
    if (isolate, ends) == ("none", "guard"):
        pytest.skip("there is none")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", HOST, isolate, launch),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        table = parents()
        everything = set(below(process.pid))
        # A new program's command line is there a moment after whoever started it goes on.
        await eventually(lambda: any(is_sleep(pid) for pid in everything))
        (program,) = filter(is_sleep, everything)
        init = table[table[program]]
        assert init in everything
        os.kill(init, signal.SIGSTOP)
        await eventually(stopped(init))
        if ends == "guard":
            os.kill(table[init], signal.SIGKILL)
            await eventually(lambda: not alive(init) and not alive(program))
            process.send_signal(signal.SIGINT)  # it removes what it has made itself
        else:
            if ends == "zygote, then host":  # which ends no kernel, and leaves none behind
                os.kill(table[init], signal.SIGKILL)
                await eventually(lambda: not alive(table[init]))
                assert alive(init)
            os.kill(process.pid, signal.SIGKILL)
            await eventually(lambda: not any(alive(pid) for pid in everything))
            remove_places_of_the_dead()  # as the next host does; the zygote would have done so at once
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
