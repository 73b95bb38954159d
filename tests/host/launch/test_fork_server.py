"""Fork servers that are killed are replaced, and each set of modules has one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from cellblock import Host
from cellblock.errors import LaunchError
from cells import ok, value
from processes import alive, below, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def kernels(host: Host) -> set[int]:
    """Every process of a host."""
    (launcher,) = host.kernels.launchers.in_use.values()
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
@pytest.mark.parametrize("isolate", ["none", "native"])
async def test_a_zygote_that_is_killed_costs_no_kernel_and_is_replaced(
    tmp_path: Path, isolate: Literal["none", "native"]
) -> None:
    """As the system may do when memory is full. Running cells, undo, branches and crashes go on without it."""
    async with Host(isolate=isolate) as host, host.session(images_dir=tmp_path) as session:
        await ok(session, "kept = 1")
        old = kernels(host)
        (launcher,) = host.kernels.launchers.in_use.values()
        running = asyncio.create_task(session.execute("import time; time.sleep(1); kept += 1; kept"))
        await eventually(lambda: session.cells.running)
        os.kill(launcher._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        assert (await running).return_value == "2"
        await session.undo()
        (branch,) = await session.fork()
        async with branch, host.session(images_dir=tmp_path) as other:
            assert await value(branch, "kept") == await value(other, "1") == 1
        assert (await session.execute("import os; os._exit(1)")).recovery == "restored"
        assert await value(session, "kept") == 1
    await eventually(lambda: not any(map(alive, old)))


@pytest.mark.slow
@pytest.mark.parametrize("dead", [True, False], ids=["dead", "dying"])
async def test_a_zygote_that_is_killed_while_nothing_runs_is_replaced(tmp_path: Path, dead: bool) -> None:
    async with Host() as host:
        await host.start()
        (launcher,) = host.kernels.launchers.in_use.values()
        zygote: int = launcher._process.pid  # type: ignore[attr-defined]
        os.kill(zygote, signal.SIGKILL)
        if dead:  # and the host has had no time to hear of it
            os.waitid(os.P_PID, zygote, os.WEXITED | os.WNOWAIT)
        async with host.session(images_dir=tmp_path) as session:
            assert await value(session, "1") == 1


@pytest.mark.slow
async def test_more_requests_at_once_than_the_socket_takes_wait_in_order(tmp_path: Path) -> None:
    async with Host() as host:
        await host.start()
        (launcher,) = host.kernels.launchers.in_use.values()
        launcher._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # type: ignore[attr-defined]  # the least there is
        os.kill(launcher._process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
        sessions = [host.session(images_dir=tmp_path) for _ in range(12)]
        starting = [asyncio.create_task(session.start()) for session in sessions]
        await eventually(lambda: launcher._queue.locked())  # type: ignore[attr-defined]
        launcher.kill(10**9)  # no room for this either, and no reason to give up all kernels
        starting[-1].cancel()
        os.kill(launcher._process.pid, signal.SIGCONT)  # type: ignore[attr-defined]
        results = await asyncio.gather(*starting, return_exceptions=True)
        assert [type(result) for result in results] == [type(None)] * 11 + [asyncio.CancelledError]
        assert await value(sessions[0], "40 + 2") == 42
        for session in sessions:
            await session.close()


@pytest.mark.slow
async def test_a_fork_server_that_reads_nothing_is_an_error_at_the_start_timeout(tmp_path: Path) -> None:
    async with Host() as host:
        await host.start()
        (launcher,) = host.kernels.launchers.in_use.values()
        launcher._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # type: ignore[attr-defined]
        os.kill(launcher._process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
        while launcher._has_room():  # type: ignore[attr-defined]
            launcher.kill(10**9)
        with pytest.raises(LaunchError, match=r"did not accept a request within 0\.05 s"):
            await launcher.room(0.05)
        os.kill(launcher._process.pid, signal.SIGCONT)  # type: ignore[attr-defined]
        await launcher.room(60)


@pytest.mark.slow
async def test_a_workspace_that_was_mounted_since_is_the_one_that_code_sees(tmp_path: Path) -> None:
    """A zygote has the mounts that there were when it was started. It is replaced."""
    code = """
import asyncio, os, subprocess, sys
from cellblock import Host
async def main():
    os.makedirs("first"); os.makedirs("mounted")
    async with Host() as host:
        async with host.session(working_dir="first") as session:
            await session.execute("1")
        subprocess.run(["mount", "-t", "tmpfs", "none", "mounted"], check=True)
        open("mounted/there", "w").close()
        async with host.session(working_dir="mounted") as session:
            print((await session.execute("import os; os.listdir('.')")).return_value)
asyncio.run(main())
"""
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("['there']\n", "", 0)
