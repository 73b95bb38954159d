"""Huge pages change what memory costs, and nothing of what it holds."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock.host import Host
from cellblock.launch.zygote import hugepages
from checkpoint_sessions import value


def test_memory_holds_what_it_held() -> None:
    script = """
import hashlib, mmap
from cellblock.launch.zygote.hugepages import collapse
areas = [mmap.mmap(-1, size << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for size in (1, 2, 5)]
things = [bytes([number % 256]) * 10_000 for number in range(2000)]
for number, area in enumerate(areas):
    area.write(bytes([number + 1]) * len(area))
digest = lambda: [hashlib.sha256(thing).hexdigest() for thing in (*areas, *things)]
before = digest()
collapse()
assert digest() == before
for area in areas:
    area.seek(0)
    area.write(b"x")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_where_there_are_none_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)
    hugepages.collapse()


async def test_large_blocks_of_a_kernel_have_huge_pages(zygote_host: Host) -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this machine has no huge pages")
    code = "block = b'x' * (64 << 20)\nint(open('/proc/self/smaps_rollup').read().split('AnonHugePages:')[1].split()[0])"
    async with zygote_host.session() as session:
        assert int(await value(session, code)) >= 32 << 10
