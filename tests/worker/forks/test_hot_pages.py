"""The pages that each cell writes to are copied before it, if nothing waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellblock import Host
from processes import eventually
from scripts import Script

MEMORY = """
import ctypes, mmap, os, select, signal, socket
from cellblock.worker.forks import hot_pages
PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 64 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
def write(*pages):
    for page in pages:
        memory[page * PAGE] = 1
def place(address):
    return (address - start) // PAGE
write(*range(64))
"""

COPIED = f"""{MEMORY}
def own():
    with open("/proc/self/pagemap", "rb") as pagemap:
        return [page for page in range(64) if os.pread(pagemap.fileno(), 8, (start // PAGE + page) * 8)[-1] == 0x81]
if not (shared := os.fork()):
    signal.pause()
ours, theirs = socket.socketpair()
hot_pages._runs[:] = [(0, PAGE), (start + 3 * PAGE, 2 * PAGE), (start + 60 * PAGE, PAGE)]
"""


def test_the_pages_are_those_that_are_written_to_after_each_fork(printed: Script) -> None:
    script = f"""{MEMORY}
finder = hot_pages.Finder()
if os.fork() == 0:
    write(1)
    finder.fork_copy(1, False)
    write(3, 4, 30, 60)
    finder.fork_copy(2, False)
    write(3, 4, 40, 60)
    finder.fork_copy(3, False)
finder.take()
print([(place(address), size // PAGE) for address, size in hot_pages._runs if 0 <= place(address) < 64])
"""
    assert printed(script) == ["[(3, 2), (60, 1)]"]


def test_nothing_is_known_if_the_fork_fails(printed: Script) -> None:
    script = f"""{MEMORY}
finder = hot_pages.Finder()
if os.fork() == 0:
    finder.fork_copy(1, False)
    os.kill(os.getpid(), signal.SIGKILL)
finder.take()
print(hot_pages._runs)
"""
    assert printed(script) == ["[]"]


def test_they_are_copied_and_no_others(printed: Script) -> None:
    script = f"""{COPIED}
hot_pages.copy(lambda: select.select([ours], [], [], 0)[0])
print(own())
os.kill(shared, signal.SIGKILL)
"""
    assert printed(script) == ["[3, 4, 60]"]


def test_none_are_copied_while_something_waits(printed: Script) -> None:
    script = f"""{COPIED}
theirs.send(b"cell")
hot_pages.copy(lambda: select.select([ours], [], [], 0)[0])
print(own())
os.kill(shared, signal.SIGKILL)
"""
    assert printed(script) == ["[]"]


def faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.slow
async def test_a_cell_soon_after_another_one_finds_them_copied(tmp_path: Path) -> None:
    async with Host(isolate="none") as host, host.session(working_dir=tmp_path) as session:
        worker = int((await session.execute("import os, resource; os.getpid()")).return_value or 0)

        async def still(seen: list[int]) -> bool:
            await asyncio.sleep(0.01)
            seen.append(faults(worker))
            return len(seen) > 1 and seen[-1] == seen[-2]

        async def copied() -> bool:
            await session.execute("x = 1")
            seen: list[int] = []
            await eventually(lambda: still(seen))  # its copy is made, and so are those of its pages
            result = await session.execute("resource.getrusage(resource.RUSAGE_SELF).ru_minflt")
            return int(result.return_value or 0) - seen[-1] < 100  # 350 without

        await eventually(copied, timeout=60)  # a busy machine may need longer between two cells
