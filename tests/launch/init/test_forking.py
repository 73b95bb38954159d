"""Copies of a worker: what their processes do when another one has ended."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from cellblock import Host
from cellblock.errors import CheckpointError


def test_a_copy_ends_if_init_has_ended_before_the_copy_was_its_child() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    # The process in between has ended as well, and the parent is somebody else.
    code = f"from cellblock.launch.init import forking; forking._wait_for_parent({gone.pid}, {gone.pid}); print('goes on')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_a_copy_goes_on_when_it_is_a_child_of_init() -> None:
    code = f"from cellblock.launch.init import forking; forking._wait_for_parent({os.getpid()}, 1); print('goes on')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert ended.stdout == "goes on\n"


@pytest.mark.slow
def test_handlers_for_forks_run_once_in_each_kernel_and_not_in_the_copy() -> None:
    """They write to as many pages as all the rest of a copy."""
    told = asyncio.run(_handlers())
    assert told == [["before", "parent"], ["before", "child"], ["before", "child"]]


async def _handlers() -> list[Any]:
    code = """
        import os
        told = []
        os.register_at_fork(
            before=lambda: told.append("before"), after_in_parent=lambda: told.append("parent"),
            after_in_child=lambda: told.append("child"),
        )
    """
    async with Host() as host, host.session(recovery="none") as session:
        await session.execute(textwrap.dedent(code))
        checkpoint = await session.checkpoint()
        seen = [(await session.execute("print(told)")).text]
        for _ in range(2):
            await session.restore(checkpoint)
            seen.append((await session.execute("print(told)")).text)
    return [ast.literal_eval(text or "") for text in seen]


def test_the_locks_for_forks_are_free_before_anybody_waits() -> None:
    """Other threads of Python run meanwhile, and one that wants such a lock could keep the interpreter for ever.

    Without room for a fork, nothing stays open or locked.
    """
    code = """
        import os
        from cellblock.launch.init import forking
        order = []
        fork_below = forking._fork_below
        forking._fork_below = lambda init: 5
        forking._wait_for_end = lambda between: order.append("waits")
        os.register_at_fork(after_in_parent=lambda: order.append("handlers"))
        forking.fork_copy(3, 4, 1, soon=False)
        print(order)
        order.clear()
        forking._fork_below = fork_below
        before = os.listdir("/proc/self/fd")
        def fork():
            raise BlockingIOError(11, "no room")
        forking.fork = fork
        try:
            forking.fork_copy(3, 4, 1, soon=False)
        except OSError as error:
            order.append(error.strerror)
        print(order, before == os.listdir("/proc/self/fd"))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=20, check=True)
    assert ran.stdout == "['handlers', 'waits']\n['handlers', 'no room'] True\n"


ITS_OWN = """
import os, pathlib, signal
[pathlib.Path("/proc/self/comm").read_text(), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))]
"""


async def test_signals_to_every_process_of_a_session_cost_one_cell(native_host: Host) -> None:
    """Init takes no SIGTERM from within its namespace, and copies no signals but SIGKILL. `pkill` looks for names."""
    by_name = """
for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
    if open(f"/proc/{process}/comm").read() == "python\\n" and process != os.getpid():
        os.kill(process, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    async with native_host.session() as session:
        await session.execute("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])")
        before = await session.execute(ITS_OWN)
        for cell in ("os.kill(-1, signal.SIGTERM); os.kill(1, signal.SIGTERM); os.kill(os.getpid(), signal.SIGTERM)", by_name):
            await session.execute("x = 1")
            died = await session.execute(cell)
            assert (died.status, died.recovery) == ("died", "restored")
            assert (await session.execute("x")).return_value == "1"
        assert (await session.execute(ITS_OWN)).return_value == before.return_value
        await session.undo(2)


async def test_a_kernel_that_cannot_be_made_leaves_the_session_as_it_is(native_host: Host) -> None:
    async with native_host.session() as session:
        await session.execute("import os; x = 1")
        await session.execute("os.register_at_fork(after_in_child=lambda: os._exit(1))")
        await session.execute("x = 2")
        for way in (session.undo, session.fork):
            with pytest.raises(CheckpointError, match="no kernel could be made"):
                await way()
        assert (await session.execute("x")).return_value == "2"
        died = await session.execute("os._exit(1)")
        assert died.recovery == "restored_earlier"  # the last state from which a kernel can be made
        assert (await session.execute("x")).return_value == "1"


async def test_a_copy_that_code_has_stopped_goes_on(native_host: Host) -> None:
    stop = """
for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
    if open(f"/proc/{process}/comm").read() == "checkpoint\\n":
        os.kill(process, 19)
"""
    async with native_host.session() as session:
        await session.execute("import os; x = 1")
        await session.execute("x = 2")
        await session.execute(stop)
        await session.undo(2)
        assert (await session.execute("x")).return_value == "1"


@pytest.mark.slow
async def test_there_are_descriptors_left_for_the_way_back(native_host: Host) -> None:
    async with native_host.session() as session:
        await session.execute("x = 1")
        await session.execute("""
            files = []
            try:
                while True: files.append(open("/dev/null"))
            except OSError: del files[-3:]
        """)
        assert "files are open, and a checkpoint needs" in (await session.execute("x = 2")).not_undoable
        assert (await session.execute("import os; os._exit(1)")).recovery == "restored_earlier"
        assert (await session.execute("x")).return_value == "1"
