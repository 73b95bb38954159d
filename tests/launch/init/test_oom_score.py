"""What is least trusted is killed first when the memory of the machine is full."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cellblock import Host
from processes import below, eventually

CHILDREN = """
import os, subprocess, time
forked = os.fork()
if not forked:
    time.sleep(1000)
subprocess.Popen(['sleep', '1000'])
"""


def scores() -> list[int]:
    """Return the scores of all processes below this one that have one of their own."""
    own, found = int(Path("/proc/self/oom_score_adj").read_text()), []
    for pid in below(os.getpid()):
        try:
            score = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
        except (OSError, ValueError):
            continue
        if score != own:
            found.append(score)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such scores")
async def test_children_of_code_go_before_workers_and_workers_before_all_else(native_host: Host) -> None:
    async with native_host.session() as session:
        await session.execute("1")
        assert {*scores()} == {300}
        await session.execute(CHILDREN)
        await eventually(lambda: scores().count(600) >= 2, 20)
        if os.geteuid() == 0:  # an ordinary user's program hides before it starts, and only root may write to its score then
            await session.spawn("sleep 1000")
            await eventually(lambda: scores().count(600) >= 3, 20)
