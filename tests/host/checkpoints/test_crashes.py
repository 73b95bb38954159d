"""A session whose cell has died continues from its checkpoint, also while there is hardly room for another process."""

from __future__ import annotations

import pytest

from cellblock.host import Host
from cellblock.walls.sandbox.policy import MIB, Policy, Resources
from checkpoint_sessions import value

pytestmark = pytest.mark.slow

PROCESSES = """
import os, subprocess
try:
    while True:
        subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
except OSError:
    os._exit(3)
"""
MEMORY = """
import os
kept, size = [], 64 << 20
while size > 1 << 16:
    try:
        kept.append(b"x" * size)
    except MemoryError:
        size //= 2
os._exit(3)
"""


@pytest.mark.parametrize("code", [PROCESSES, MEMORY], ids=["processes", "memory"])
async def test_a_crash_without_room_keeps_the_variables(native_host: Host, code: str) -> None:
    resources = Resources(memory=256 * MIB, processes=100)
    async with native_host.session(policy=Policy(resources=resources)) as session:
        assert (await session.execute("import array; x = array.array('q', [1]) * (12 << 20)")).ok  # 96 MiB
        died = await session.execute(code, timeout=120)
        assert (died.status, died.recovery) == ("died", "restored")
        assert await value(session, "len(x)") == str(12 << 20)
