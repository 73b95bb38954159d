"""The command line: whole processes, as a shell starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.cases import Series, ms
from bench.systems import System


async def execute(system: System, *, n: int) -> Series:
    """`exec` in a session that is there already."""
    program = str(Path(sys.executable).with_name(system.module))
    times: list[float] = []
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "CELLBLOCK_HOME": home, "KERNELBOX_HOME": home}

        def run(*arguments: str) -> bytes:
            done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, env=environment, check=True)
            return done.stdout

        run("create", "--name", "bench")
        right = 0
        for _ in range(n):
            began = time.perf_counter()
            text = run("exec", "--name", "bench", "print(6 * 7)")
            times.append(ms(began))
            right += b'"output": "42\\n"' in text
        run("destroy", "--name", "bench")
        if system.module == "cellblock":
            run("daemon", "stop")
    return {"ms": times, "right": [right / n]}
