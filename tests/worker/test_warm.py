"""What a zygote does once for all kernels."""

from __future__ import annotations

import pytest

from scripts import printed


@pytest.mark.slow
def test_a_zygote_finds_the_pages_that_a_cell_writes_to_and_stays_as_it_was() -> None:
    script = """
import os, sys
from cellblock.launch.init.processes import become_subreaper
from cellblock.worker.forks import hot_pages
from cellblock.worker.warm import find_hot_pages, warm
become_subreaper()
shell, outbox = warm(())
seen = set(os.listdir("/proc/self/fd"))
find_hot_pages(shell, outbox)
pages = sum(length for _, length in hot_pages._runs) // os.sysconf("SC_PAGE_SIZE")
print(100 < pages < 2000, any(start <= id(shell) < start + length for start, length in hot_pages._runs))
print("mmap" in sys.modules)  # which kernels take for a sign that code has used it
print(set(os.listdir("/proc/self/fd")) == seen, shell.execution_count, "x" in shell.user_ns)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no process is left")
"""
    assert printed(script) == ["True True", "False", "True 1 False", "no process is left"]
