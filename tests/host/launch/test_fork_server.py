"""Fork servers that are killed are replaced, and each set of modules has one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cellblock import Host
from cells import ok, value
from processes import alive, below, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def kernels(host: Host) -> set[int]:
    """Every process of a host."""
    (launcher,) = host._launchers.in_use.values()
    process = launcher._process  # type: ignore[attr-defined]
    return {process.pid, *below(process.pid)}


@pytest.mark.slow
async def test_sessions_with_other_preloads_get_a_zygote_of_their_own(host: Host, tmp_path: Path) -> None:
    async with Host() as other:
        async with other.session(images_dir=tmp_path, preload=["colorsys"]) as session:
            assert await value(session, "import sys; 'colorsys' in sys.modules") is True
        async with other.session(images_dir=tmp_path) as session:
            assert await value(session, "import sys; 'colorsys' in sys.modules") is False


@pytest.mark.slow
async def test_a_zygote_that_is_killed_takes_its_kernels_along_and_is_replaced(tmp_path: Path) -> None:
    async with Host() as host, host.session(images_dir=tmp_path) as session:
        await ok(session, "lost = 1")
        old = kernels(host)
        running = asyncio.create_task(session.execute("import time; time.sleep(60)"))
        await eventually(lambda: session.reader.running)
        (launcher,) = host._launchers.in_use.values()
        os.kill(launcher._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        result = await asyncio.wait_for(running, 5)
        assert result.status == "died"
        assert result.state_lost
        await eventually(lambda: not any(map(alive, old)))
        assert (await session.execute("lost")).status == "error"
        assert await value(session, "40 + 2") == 42


@pytest.mark.slow
@pytest.mark.parametrize("dead", [True, False], ids=["dead", "dying"])
async def test_a_zygote_that_is_killed_while_nothing_runs_is_replaced(tmp_path: Path, dead: bool) -> None:
    async with Host() as host:
        await host.start()
        (launcher,) = host._launchers.in_use.values()
        zygote: int = launcher._process.pid  # type: ignore[attr-defined]
        os.kill(zygote, signal.SIGKILL)
        if dead:  # and the host has had no time to hear of it
            os.waitid(os.P_PID, zygote, os.WEXITED | os.WNOWAIT)
        async with host.session(images_dir=tmp_path) as session:
            assert await value(session, "1") == 1
