"""The files of checkpoints, through sessions: what comes back with the memory, and what is said if they stay."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from cellblock import CheckpointError, Host, LaunchError, Rolling, Session, SnapshotError
from cellblock.host.checkpoints import filing
from cellblock.host.checkpoints import workspace_snapshots as checkpoint_files
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.snapshots import SnapshotLimits, Snapshots
from checkpoint_sessions import value
from processes import eventually
from suite import first_quick


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files kept at once after a cell."""
    monkeypatch.setattr(filing, "_AFTER", 0.001)


@asynccontextmanager
async def made(host: Host, workspace: Path, recovery: Rolling | Literal["exact", "none"] = "none") -> AsyncIterator[Session]:
    async with host.session(working_dir=workspace, images_dir=workspace / "images", recovery=recovery) as session:
        yield session
        for checkpoint in session.checkpoints():
            await checkpoint.drop()
    await eventually(lambda: host.store().bytes == 0)


async def test_files_come_back_with_the_memory(any_host: Host, tmp_path: Path) -> None:
    async with made(any_host, tmp_path) as session:
        await session.execute("x = 1; open('a', 'w').write('1'); open('b', 'w').write('1'); import os; os.mkdir('folder')")
        checkpoint = await session.checkpoint("before", files="copy")
        await session.execute("x = 2; open('a', 'w').write('2'); os.rename('b', 'c'); os.rmdir('folder')")
        await session.execute("!echo shell > d")
        changes = await session.restore(checkpoint)
        assert (changes.written, changes.removed) == (("a", "b"), ("c", "d"))
        assert (await session.execute("x, open('a').read(), open('b').read()")).return_value == "(1, '1', '1')"
        assert sorted(name for name in os.listdir(tmp_path) if name[0] != ".") == ["a", "b", "folder"]
        shared = await session.checkpoint()
        await session.execute("open('new', 'w').close()")
        assert (await session.restore(shared)).removed == ()
        assert (tmp_path / "new").exists()


async def test_no_file_is_examined_after_the_end_of_the_session(zygote_host: Host, tmp_path: Path) -> None:
    async with made(zygote_host, tmp_path) as session:
        files = session._checkpoints.files
        zygote_host.store().drop(await files.take())
    with pytest.raises(SnapshotError, match="is closed"):
        await files.take()


async def test_names_that_a_session_cannot_change_are_not_changed_for_it(native_host: Host, tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "settings.json").write_text("1")
    async with made(native_host, tmp_path) as session:
        checkpoint = await session.checkpoint(files="copy")
        (tmp_path / ".vscode" / "settings.json").write_text("2")  # by a person
        await session.restore(checkpoint)
        assert (tmp_path / ".vscode" / "settings.json").read_text() == "2"


async def kept(session: Session) -> None:
    """Wait until the last cell has a checkpoint with files."""
    count = session.next_count - 1
    await eventually(lambda: any(one.snapshot and one.execution_count == count for one in session.checkpoints()))


@pytest.mark.parametrize("how", first_quick(["restored", "crashed", "uploaded"]))
@pytest.mark.usefixtures("soon")
async def test_undo_takes_back_what_its_cells_have_changed_and_nothing_older(
    zygote_host: Host, tmp_path: Path, how: str
) -> None:
    async with made(zygote_host, tmp_path, Rolling(after=0.001)) as session:
        await session.execute("open('a', 'w').write('1')")
        await kept(session)
        checkpoint = await session.checkpoint()
        if how == "uploaded":
            await session.files.write("a", "2")
        else:
            await session.execute("open('a', 'w').write('2')" + ("; import os; os._exit(1)" if how == "crashed" else ""))
        if how == "restored":
            await session.restore(checkpoint)
        await kept(session)
        await session.execute("open('a', 'w').write('3')")
        assert [one.path for one in (await session.undo()).files] == ["a"]
        assert (tmp_path / "a").read_text() == "2"


async def test_undo_says_why_files_stay(zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "_SMALL", SnapshotLimits(max_files=1))
    async with made(zygote_host, tmp_path, Rolling(after=0.001)) as session:
        await session.execute("open('a', 'w').write('1'); open('b', 'w').write('1')")
        await eventually(lambda: "more than 1 files" in session._checkpoints.automatic.filing.skipped)
        await session.execute("import os; os.remove('b'); open('a', 'w').write('2')")
        await kept(session)  # these could be, which says nothing of those before
        with pytest.raises(CheckpointError, match=r"files cannot be restored: .* more than 1 files"):
            await session.undo()
        undone = await session.undo(partial=True)
        assert undone.files == []
        assert "more than 1 files" in undone.files_left
        assert (tmp_path / "a").read_text() == "2"


async def test_files_can_be_dropped_when_python_starts_no_thread_any_more(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.12 on it starts none once the program's end has begun."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    (tmp_path / "a").write_text("1")
    async with made(zygote_host, tmp_path) as session:
        checkpoint = await session.checkpoint(files="copy")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            checkpoint.discard()
    assert zygote_host.store().bytes == 0


async def test_if_files_cannot_come_back_the_session_stays_as_it_is(zygote_host: Host, tmp_path: Path) -> None:
    async with made(zygote_host, tmp_path) as session:
        await session.execute("x = 1; open('a', 'w').write('1')")
        checkpoint = await session.checkpoint(files="copy")
        await session.execute("x = 2; import os; os.remove('a'); os.makedirs('a/.git')")
        with pytest.raises(SnapshotError, match="a folder"):
            await session.restore(checkpoint)
        assert (await session.execute("x")).return_value == "2"
        (tmp_path / "a" / ".git").rmdir()
        await session.restore(checkpoint)
        assert (await session.execute("x, open('a').read()")).return_value == "(1, '1')"


_THREAD = """
import threading
threading.Thread(target={work}, daemon=True).start()
"""
_PROCESS = """
import os
if os.fork() == 0:
    os.setsid()
    {work}()
    os._exit(0)
"""
_OVERWRITE = """
def overwrite():
    "Write to a file as soon as it is what it was before this cell."
    while open('a').read() != 'before':
        pass
    open('a', 'w').write('late')
open('a', 'w').write('cell')
"""


@pytest.mark.parametrize("beside", [_THREAD, pytest.param(_PROCESS, marks=pytest.mark.slow)])
async def test_what_ran_beside_the_cell_cannot_write_to_what_comes_back(any_host: Host, tmp_path: Path, beside: str) -> None:
    async with made(any_host, tmp_path, "exact") as session:
        assert (await session.execute("open('a', 'w').write('before')")).ok
        assert (await session.execute(_OVERWRITE + beside.format(work="overwrite"))).ok
        undone = await session.undo()
        assert ([one.path for one in undone.files], undone.files_left) == (["a"], "")
        assert await value(session, "open('a').read()") == "'before'"
        assert await value(session, "open('a').read()") == "'before'"


@pytest.mark.parametrize(("before", "kept"), first_quick([("", True), ("x = 1", False)]))
async def test_exit_handlers_of_what_is_undone_do_not_run(
    any_host: Host, tmp_path: Path, before: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the session goes back to a fresh kernel, and if no files are kept."""
    if not kept:
        monkeypatch.setattr(checkpoint_files, "_SMALL", SnapshotLimits(max_files=1))
        (tmp_path / "b").touch()
        (tmp_path / "c").touch()
    async with made(any_host, tmp_path, "exact") as session:
        if before:
            await session.execute(before)
        await session.execute("import atexit; atexit.register(lambda: open('a', 'w').close())")
        await session.undo()
        assert await value(session, "__import__('os').path.exists('a')") == "False"


async def test_what_runs_beside_goes_on_if_files_cannot_come_back(
    any_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SnapshotError("no room")

    async with made(any_host, tmp_path, "exact") as session:
        await session.execute("open('a', 'w').write('before')")
        await session.execute("open('a', 'w').write('cell')\nn = 0\ndef count():\n    global n\n    while True: n += 1")
        await session.execute(_THREAD.format(work="count"))
        before = int(await value(session, "n"))
        monkeypatch.setattr(Snapshots, "undo", fail)
        with pytest.raises(SnapshotError, match="no room"):
            await session.undo(3)
        assert int(await value(session, "(__import__('time').sleep(0.01), n)[1]")) > before


_PROGRAMS = """
def run():
    import subprocess
    while True:
        subprocess.run(["true"])
open('a', 'w').write('cell')
"""


@pytest.mark.slow
async def test_programs_that_are_started_all_the_time_can_be_stopped(any_host: Host, tmp_path: Path) -> None:
    """Half of the time, a thread waits for a new process that is stopped, and so does not stop itself."""
    async with made(any_host, tmp_path, "exact") as session:
        await session.execute("open('a', 'w').write('before')")
        for _ in range(2):
            assert (await session.execute(_PROGRAMS + 3 * _THREAD.format(work="run"))).ok
            assert [one.path for one in (await session.undo()).files] == ["a"]
            assert (tmp_path / "a").read_text() == "before"


async def test_a_process_that_cannot_be_stopped_keeps_files_from_being_brought_back(
    any_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def freeze(_: Kernel) -> int:
        return 2

    async with made(any_host, tmp_path, "exact") as session:
        await session.execute("open('a', 'w').write('before')")
        await session.execute("open('a', 'w').write('cell')")
        monkeypatch.setattr(Kernel, "freeze", freeze)
        for cells in (1, 2):  # two: back to the fresh kernel
            with pytest.raises(CheckpointError, match="2 of the session's processes cannot be stopped"):
                await session.undo(cells)
        assert (tmp_path / "a").read_text() == "cell"
        monkeypatch.undo()
        assert [one.path for one in (await session.undo(2)).files] == ["a"]  # what was kept still is
        assert not (tmp_path / "a").exists()


async def test_if_no_kernel_can_be_made_files_become_again_what_they_were(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise LaunchError("there is no room")

    async with made(zygote_host, tmp_path) as session:
        await session.execute("x = 1; open('a', 'w').write('1')")
        checkpoint = await session.checkpoint(files="copy")
        await session.execute("x = 2; open('a', 'w').write('2'); open('b', 'w').write('2')")
        with monkeypatch.context() as patch:
            patch.setattr(session._checkpoints.resuming, "_make", fail)
            with pytest.raises(CheckpointError, match="there is no room"):
                await session.restore(checkpoint)
        assert (await session.execute("x, open('a').read(), open('b').read()")).return_value == "(2, '2', '2')"
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".cellblock")]


@pytest.mark.slow
async def test_sessions_that_restore_files_of_one_directory_at_once_take_turns(any_host: Host, tmp_path: Path) -> None:
    names = range(8)
    async with AsyncExitStack() as stack:
        made = [any_host.session(working_dir=tmp_path, images_dir=tmp_path / "images", recovery="none") for _ in range(3)]
        sessions = [await stack.enter_async_context(session) for session in made]
        checkpoints = []
        for number, session in enumerate(sessions):
            await session.execute(f"x = {number}\nfor name in {names}: open(str(name), 'w').write('{number}')")
            checkpoints.append(await session.checkpoint(files="copy"))
        for _ in range(4):
            await asyncio.gather(*(session.restore(one) for session, one in zip(sessions, checkpoints, strict=True)))
            assert {(tmp_path / str(name)).read_text() for name in names} in ({"0"}, {"1"}, {"2"})
            assert [(await session.execute("x")).return_value for session in sessions] == ["0", "1", "2"]
        for checkpoint in checkpoints:
            await checkpoint.drop()
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".cellblock")]


async def test_a_checkpoint_whose_files_cannot_be_kept_is_none(zygote_host: Host, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with made(zygote_host, workspace) as session:
        workspace.rename(tmp_path / "moved")
        with pytest.raises(SnapshotError, match="no such file or directory"):
            await session.checkpoint(files="copy")
        assert session.checkpoints() == []
        (tmp_path / "moved").rename(workspace)


async def test_a_session_that_begins_with_a_checkpoint_has_its_files(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path, images_dir=tmp_path / "i", recovery="none") as first:
        await first.execute("x = 1; open('a', 'w').write('1')")
        checkpoint = await first.checkpoint(files="copy")
    (tmp_path / "a").write_text("2")
    async with zygote_host.session(start_from=checkpoint) as second:
        assert (await second.execute("x, open('a').read()")).return_value == "(1, '1')"
    await checkpoint.drop()
    await eventually(lambda: zygote_host.store().bytes == 0)


@pytest.mark.slow
async def test_a_next_cell_does_not_wait_for_files(zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    take = checkpoint_files.CheckpointFiles._take_small

    def slow(self: checkpoint_files.CheckpointFiles, *args: object) -> object:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        return take(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint_files.CheckpointFiles, "_take_small", slow)
    async with made(zygote_host, tmp_path, Rolling(after=0.001)) as session:
        await session.execute("open('a', 'w').write('1')")
        await begun.wait()
        await session.execute("open('a', 'w').write('2')")  # ends, though files are still to be kept
        go_on.set()
        await eventually(lambda: session.checkpoints()[-1].snapshot)
        assert session.checkpoints()[0].snapshot is None


KILLED = """
import asyncio, os, sys
from pathlib import Path
from cellblock import Host
from cellblock.host.snapshots import restore

async def main():
    async with Host(launch="spawn", isolate="none") as host:
        session = host.session(working_dir=sys.argv[1], images_dir=sys.argv[1] + "/images", recovery="none")
        await session.start()
        checkpoint = await session.checkpoint(files="copy")
        for name in "abc":
            Path(sys.argv[1], name).write_text("2")
        do, count = restore._do, 0
        def killed(*args):
            nonlocal count
            count += 1
            if count == 4:
                os.kill(os.getpid(), 9)
            do(*args)
        restore._do = killed
        await session.restore(checkpoint)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_the_next_session_finishes_what_a_killed_program_has_begun(zygote_host: Host, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("1")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(tmp_path), stderr=subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert "2" in "".join((tmp_path / name).read_text() for name in "abc" if (tmp_path / name).exists())
    async with made(zygote_host, tmp_path):
        assert [(tmp_path / name).read_text() for name in "abc"] == ["1", "1", "1"]
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".cellblock")]


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is forbidden to root")
async def test_a_cell_that_makes_the_workspace_read_only_says_that_it_cannot_be_undone(
    zygote_host: Host, tmp_path: Path
) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        assert (await session.execute("import os; open('f', 'w').close()")).not_undoable == ""
        try:
            assert (await session.execute("os.chmod('.', 0o555)")).not_undoable == "it made the workspace read-only"
            assert (await session.execute("x = 1")).not_undoable == ""
        finally:
            tmp_path.chmod(0o755)
