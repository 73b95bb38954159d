"""Huge pages change what memory costs, and nothing of what it holds."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from cellblock.launch.zygote import hugepages


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
