"""The life of placeholders: as long as a session may run in the directory, however it and its host come to an end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cellblock import Host, Session
from cellblock.errors import BusyError
from cellblock.host.kernels import family
from cellblock.host.kernels.family import Idling
from cellblock.walls.sandbox.placeholders import is_placeholder
from cells import value
from conftest import Launch
from leaks import BOOT
from processes import below, command_line, eventually, tree
from suite import first_quick

LAUNCHES: tuple[Launch, ...] = ("zygote", "spawn")
MARK = ".npmrc"
"""What makes the workspace a project, in which names are kept"""

PLANT = """
import os
def plant():
    try:
        os.mkdir('.vscode')
    except OSError as error:
        return error.strerror
plant()
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Where sessions run."""
    path = tmp_path / "workspace"
    path.mkdir()
    (path / MARK).write_text("")
    return path


def kept(workspace: Path) -> bool:
    """Whether there are placeholders; not only some of them."""
    found = {name for name in os.listdir(workspace) if is_placeholder((workspace / name).lstat().st_mode)}
    assert not found or ".vscode" in found
    return bool(found)


def gone(workspace: Path) -> Callable[[], bool]:
    """Return whether there is nothing."""
    return lambda: os.listdir(workspace) == [MARK]


def booted(root: int) -> set[int]:
    """Return the zygotes, or the processes that guard sessions without one, below a process."""
    found = tree(root)
    ours = {pid for pid in found if command_line(pid).split(" ")[1:2] == [str(BOOT)]}
    return ours - {child for pid in ours for child in found[pid]}


@asynccontextmanager
async def running(host: Host, workspace: Path) -> AsyncIterator[Session]:
    """A session that is kept from planting."""
    async with host.session(working_dir=workspace, images_dir=workspace.parent / "images") as session:
        assert kept(workspace)
        assert await value(session, PLANT) == "File exists"
        yield session


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
async def test_they_are_gone_when_the_session_is_closed(workspace: Path, launch: Launch) -> None:
    async with Host(isolate="native", launch=launch) as host:
        async with running(host, workspace) as session:
            await session.reset()
            assert kept(workspace)
            assert await value(session, PLANT) == "File exists"
        await eventually(gone(workspace))


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
async def test_they_are_gone_when_everything_in_the_session_was_killed(workspace: Path, launch: Launch) -> None:
    async with Host(isolate="native", launch=launch) as host, running(host, workspace):
        for guard in booted(os.getpid()):
            for pid in below(guard):
                _kill(pid)
        await eventually(gone(workspace))


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
async def test_they_stay_with_the_kernel_when_the_zygote_was_killed(workspace: Path, launch: Launch) -> None:
    """Without a zygote, the process that is killed is the one above the kernel's init, which ends with it."""
    async with Host(isolate="native", launch=launch) as host:
        before = booted(os.getpid())
        await host.start()
        async with running(host, workspace) as session:
            for pid in booted(os.getpid()) - (before if launch == "spawn" else set()):
                _kill(pid)
            if launch == "spawn":
                await eventually(gone(workspace))
                await session.execute("1")
            assert await value(session, PLANT) == "File exists"
        await eventually(gone(workspace))


PROGRAM = """
import asyncio, sys
from cellblock import Host

async def main():
    async with Host(isolate="native", launch=sys.argv[2]) as host:
        async with host.session(working_dir=sys.argv[1], images_dir=sys.argv[1] + "/../images") as session:
            await session.execute("1")
            print("ready", flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


@asynccontextmanager
async def another(workspace: Path, launch: Launch) -> AsyncIterator[int]:
    """Another program with a session in the workspace."""
    # What it keeps for its packages is removed by the next one that looks there; that is another matter.
    environment = {**os.environ, "TMPDIR": str(workspace.parent)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(workspace), launch, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
async def test_they_are_gone_when_the_host_was_killed(workspace: Path, launch: Launch) -> None:
    async with another(workspace, launch) as pid:
        assert kept(workspace)
        _kill(pid)
        await eventually(gone(workspace))


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
async def test_init_removes_them_when_host_and_zygote_were_killed(workspace: Path, launch: Launch) -> None:
    async with another(workspace, launch) as pid:
        (guard,) = booted(pid)
        _kill(guard)
        _kill(pid)
        await eventually(gone(workspace))


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
async def test_what_nobody_was_left_to_remove_the_next_session_does(
    native_host: Host, workspace: Path, launch: Launch
) -> None:
    async with another(workspace, launch) as pid:
        (guard,) = booted(pid)
        everybody = [pid, guard, *below(guard)]
        for one in everybody:
            os.kill(one, signal.SIGSTOP)
        for one in everybody:
            _kill(one)
    assert kept(workspace)
    async with running(native_host, workspace):
        pass
    assert gone(workspace)()


@pytest.mark.slow
async def test_they_are_there_for_the_sessions_of_all_programs(native_host: Host, workspace: Path) -> None:
    async with running(native_host, workspace) as session:
        async with another(workspace, "zygote") as pid:
            _kill(pid)
            await eventually(lambda: not below(pid))
        assert kept(workspace)
        assert await value(session, PLANT) == "File exists"
    async with another(workspace, "zygote"):
        async with running(native_host, workspace):
            pass
        assert kept(workspace)
    await eventually(gone(workspace))


@pytest.mark.slow
async def test_sessions_that_come_and_go_at_once_are_all_kept_from_planting(native_host: Host, workspace: Path) -> None:
    async with Host(isolate="native") as other:

        async def come_and_go(host: Host) -> None:
            for _ in range(8):
                async with host.session(working_dir=workspace, images_dir=workspace.parent / "images") as session:
                    assert await value(session, PLANT) == "File exists"

        await asyncio.gather(*(come_and_go(host) for host in (native_host, other) * 2))
    await eventually(gone(workspace))


async def test_what_the_user_makes_of_one_stays_and_is_read_only(native_host: Host, workspace: Path) -> None:
    async with native_host.session(working_dir=workspace, images_dir=workspace.parent / "images") as session:
        (workspace / ".vscode").chmod(0o700)
        (workspace / ".vscode" / "settings.json").write_text("{}")
        assert await value(session, "open('.vscode/settings.json').read()") == "{}"
        code = "try:\n    open('.vscode/settings.json', 'w')\nexcept OSError as error:\n    found = error.strerror\nfound"
        assert await value(session, code) == "Read-only file system"
    assert sorted(os.listdir(workspace)) == [MARK, ".vscode"]
    assert (workspace / ".vscode" / "settings.json").read_text() == "{}"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove placeholders sooner than users would want."""
    monkeypatch.setattr(family, "QUIET", 0.05)


async def idle(workspace: Path, *there: str) -> None:
    """Wait until nothing but these names is there."""
    await eventually(lambda: sorted(os.listdir(workspace)) == sorted((MARK, *there)))


@pytest.mark.parametrize(
    "begin",
    first_quick(
        [
            "import asyncio\nleft = asyncio.create_task(asyncio.sleep(600))",
            "import threading\nevent = threading.Event()\nthreading.Thread(target=event.wait, daemon=True).start()",
            "import subprocess\nchild = subprocess.Popen(['sleep', '600'])",
            "import asyncio\nserver = await asyncio.start_server(lambda *_: None, '127.0.0.1', 0)",
            "import signal\nsignal.setitimer(signal.ITIMER_REAL, 600)",
            "file = open('log', 'w')",
        ],
        3,
    ),
    ids=["task", "thread", "child", "server", "timer", "file"],
)
async def test_a_session_with_background_work_keeps_its_placeholders(
    native_host: Host, workspace: Path, monkeypatch: pytest.MonkeyPatch, soon: None, begin: str
) -> None:
    tried = asyncio.Event()
    later = Idling._try_later

    def noted(self: Idling) -> None:
        tried.set()
        later(self)

    monkeypatch.setattr(Idling, "_try_later", noted)
    async with native_host.session(working_dir=workspace, images_dir=workspace.parent / "images") as session:
        assert (await session.execute(begin)).ok
        await asyncio.wait_for(tried.wait(), 20)
        assert kept(workspace)
        assert await value(session, PLANT) == "File exists"


@pytest.mark.slow
async def test_two_sessions_share_them_while_either_runs(native_host: Host, workspace: Path, soon: None) -> None:
    images = workspace.parent / "images"
    async with native_host.session(working_dir=workspace, images_dir=images) as one:
        async with native_host.session(working_dir=workspace, images_dir=images) as other:
            await asyncio.gather(one.execute("1"), other.execute("1"))
            await idle(workspace)
            running = asyncio.create_task(one.execute("import time; time.sleep(1)"))
            await eventually(lambda: kept(workspace))
            for _ in range(3):
                assert await value(other, PLANT) == "File exists"
                await asyncio.sleep(0.2)
                assert kept(workspace)
            await running
        await idle(workspace)
        assert await value(one, PLANT) == "File exists"
    await eventually(gone(workspace))


async def test_a_session_that_cannot_block_names_runs_nothing_and_loses_nothing(
    native_host: Host, workspace: Path, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    async with native_host.session(working_dir=workspace, images_dir=workspace.parent / "images") as session:
        await session.execute("x = 7")
        await idle(workspace)
        other = os.open(workspace, os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match=r"cannot be blocked again.*is locked \(flock\) by another program"):
            await session.execute("1")
        await idle(workspace)
        os.close(other)
        assert await value(session, "x") == 7
        assert await value(session, PLANT) == "File exists"


async def test_an_undo_of_an_idle_session_blocks_names_again(native_host: Host, workspace: Path, soon: None) -> None:
    """And a program beside it."""
    async with native_host.session(working_dir=workspace, images_dir=workspace.parent / "images") as session:
        await session.execute("x = 1")
        await session.execute("x = 2; open('made', 'w').close()")
        await idle(workspace, "made")
        await session.undo()
        await idle(workspace)
        assert await value(session, "x") == 1
        assert await value(session, PLANT) == "File exists"
        await idle(workspace)
        ran = await session.exec(["mkdir", ".vscode", "made"])
        assert b"File exists" in ran.stderr
        await idle(workspace, "made")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["host", "init"])
async def test_nothing_is_left_of_an_idle_session_that_was_killed(workspace: Path, victim: str) -> None:
    async with another(workspace, "zygote") as pid:
        await idle(workspace)
        (workspace / ".env").write_text("SECRET")
        (guard,) = booted(pid)
        everything = below(guard)
        for one in [pid] if victim == "host" else everything:
            _kill(one)
        await eventually(lambda: not below(guard) or victim == "init")
    await idle(workspace, ".env")
    assert (workspace / ".env").read_text() == "SECRET"


@pytest.mark.slow
async def test_an_init_that_is_killed_while_it_blocks_names_leaves_nothing(workspace: Path, soon: None) -> None:
    for turn in range(12):
        async with (
            Host(isolate="native") as host,
            host.session(working_dir=workspace, images_dir=workspace.parent / "images") as session,
        ):
            await session.execute("1")
            await idle(workspace)
            inits = {pid for guard in booted(os.getpid()) for pid in below(guard)}
            asking = asyncio.create_task(session.execute("1"))
            await asyncio.sleep(0.0005 * turn)
            for pid in inits:
                _kill(pid)
            await asyncio.wait([asking])
            asking.exception()
        await eventually(gone(workspace))
