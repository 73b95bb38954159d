"""Small objects live in huge pages, and their memory returns to the system when they are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock.host import Host
from cellblock.walls.sandbox.ground import ENVIRONMENT
from checkpoint_sessions import value

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="arenas are moved on Linux only")

RESIDENT = "resident = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20\n"


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)


def test_arenas_are_on_the_heap_and_return_to_the_system() -> None:
    done = run(f"""{RESIDENT}
from cellblock.worker.forks.arenas import put_on_heap, release_free
put_on_heap()
heap = next(line for line in open("/proc/self/maps") if "[heap]" in line).split()[0]
start, size = int(heap.split("-")[0], 16), 1 << 32
before = resident()
things = [bytes(400) for _ in range(400_000)]
print(sum(start < id(thing) < start + size for thing in things) > 390_000)
last = object()
del things
print(resident() - before > 100)
release_free(0.01)
print(resident() - before > 100)
release_free(0.1)
print(resident() - before < 40)
""")
    assert (done.stdout.split(), done.stderr) == (["True"] * 4, "")


def test_nothing_that_was_there_before_is_freed_as_if_it_were_on_the_heap() -> None:
    done = run("""
import calendar, configparser, decimal, email.message, email.parser, gc, http.client, json, os, sys
from cellblock.worker.forks.arenas import put_on_heap
put_on_heap()
for name in [*sys.modules]:
    if name.split(".")[0] in ("calendar", "configparser", "decimal", "email", "http", "json", "urllib"):
        vars(sys.modules.pop(name)).clear()
del calendar, configparser, decimal, email, http, json
for _ in range(3):
    things = [[number] for number in range(100_000)]
    del things
    gc.collect()
if pid := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["0"], "")


async def test_small_objects_of_a_kernel_have_huge_pages(zygote_host: Host) -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this machine has no huge pages")
    pages = "int(open('/proc/self/smaps_rollup').read().split('AnonHugePages:')[1].split()[0])"
    async with zygote_host.session() as session:
        assert int(await value(session, f"things = [bytes(400) for _ in range(200_000)]\n{pages}")) >= 40 << 10
