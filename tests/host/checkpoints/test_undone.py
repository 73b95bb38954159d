"""What undo brings back, exactly: cell by cell, folders that were moved, and what code had open."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
from datetime import date
from pathlib import Path
from typing import Literal

import pytest

from cellblock import Exact, Host, Session
from cellblock.errors import CheckpointError, SnapshotError
from cellblock.host.kernels.memory import MemoryWatch
from cellblock.host.kernels.pairs import files_time
from checkpoint_sessions import run, tree, value, wait_for_clock
from processes import eventually
from suite import first_quick, in_turns

SWAPPED = "import os\nos.rename('d', 't'); os.rename('e', 'd'); os.rename('t', 'e')"
TWO = """
import os, pathlib
for name in 'de':
    os.makedirs(f'{name}/inner')
    pathlib.Path(name, 'inner', 'x').write_text(name)
"""


@pytest.mark.parametrize(
    ("any_host", "last"),
    in_turns(["open('g', 'w').write('2')", "import os; os.remove('g')", "import os; os.rename('g', 'h')", "!chmod 700 g"]),
    indirect=["any_host"],
)
async def test_one_undo_after_the_other_is_one_over_all(any_host: Host, tmp_path: Path, last: str) -> None:
    """Also for files that a cell between has not changed: what the first undo has written belongs to the cells before, too."""
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, "open('g', 'w').write('1')", "x = 1", last)
        for left in ({"g": "1"}, {"g": "1"}, {}):
            await session.undo()
            assert tree(tmp_path) == left


async def test_what_a_partial_undo_has_left_stays_and_is_told(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        large = "f = open('large', 'wb'); f.truncate(70 << 20); f.write(b'{}'); f.close()"
        await run(session, large.format(1))
        assert "was not saved" in (await session.execute(large.format(2))).not_undoable
        assert "large" in (await session.undo(partial=True)).files_left
        assert "large" in (await session.undo()).files_left
        assert [*tree(tmp_path)] == ["large"]


@pytest.mark.parametrize(
    ("any_host", "code"),
    in_turns(
        [
            SWAPPED,
            "import os, shutil\nshutil.rmtree('d'); os.rename('e', 'd')",
            "import os\nos.rename('d', 'f')",
            "import os\nos.rename('d', 'e/d')",
            "import os\nos.mkdir('f'); os.rename('d', 'f/d'); os.rename('e', 'f/e')",
        ]
    ),
    indirect=["any_host"],
)
async def test_folders_that_were_moved_are_back(any_host: Host, tmp_path: Path, code: str) -> None:
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, f"{TWO}\nos.symlink('x', 'd/inner/link'); os.mkdir('d/inner/empty')")
        before = tree(tmp_path)
        await run(session, code)
        assert tree(tmp_path) != before
        await session.undo()
        assert tree(tmp_path) == before


async def test_folders_of_an_archive_that_were_swapped_are_back(zygote_host: Host, tmp_path: Path) -> None:
    """Archives have one time for all files, so that only the files themselves tell which is which."""
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, f"{TWO}\nfor name in 'de': os.utime(f'{{name}}/inner/x', (499162500, 499162500))", "1", SWAPPED)
        await session.undo()
        assert {path: text for path, text in tree(tmp_path).items() if text} == {"d/inner/x": "d", "e/inner/x": "e"}


async def test_a_task_that_writes_at_once_after_an_undo_is_undone_with_its_cell(zygote_host: Host, tmp_path: Path) -> None:
    late = "async def late():\n    await asyncio.sleep(0.02)\n    open('f', 'w').write('task')"
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "import asyncio")
        await wait_for_clock()
        (tmp_path / "f").write_text("mine")
        await asyncio.sleep(0.06)
        await run(
            session, f"{late}\ntask = asyncio.create_task(late())", "import time; time.sleep(0.05); open('f', 'w').close()"
        )
        await session.undo()
        await eventually(lambda: (tmp_path / "f").read_text() == "task")
        await session.undo()
        assert (tmp_path / "f").read_text() == "mine"


async def test_what_a_task_writes_before_the_copy_after_a_cell_is_undone_with_the_cell(
    zygote_host: Host, tmp_path: Path
) -> None:
    """The task has ended when the kernel is copied."""
    (tmp_path / "f").write_text("mine")
    last = "def last():\n    time.sleep(0.1)\n    open('f', 'w').write('task')"
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "import asyncio, time; x = 1", f"{last}\nx = asyncio.get_running_loop().call_soon(last)")
        undone = await session.undo()
        assert [(one.path, one.action) for one in undone.files] == [("f", "reverted")]
        assert (tmp_path / "f").read_text() == "mine"
        await session.redo()
        assert (tmp_path / "f").read_text() == "task"


async def test_files_of_any_time_are_back(zygote_host: Host, tmp_path: Path) -> None:
    """Nanoseconds since 1970 fit into 64 bits up to the year 2262."""
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "import os; open('f', 'w').close(); os.utime('f', (1e10, 1e10))", "os.utime('f', (1, 1))")
        await session.undo()
        assert (tmp_path / "f").stat().st_mtime_ns == 10**19
        await session.checkpoint(files="copy")


async def test_a_branch_with_the_same_files_is_undone_with_them(any_host: Host, tmp_path: Path) -> None:
    """Cells of the session that it was adopted by keep theirs: they were left before."""
    (tmp_path / "f").write_text("0")
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, "open('first', 'w').close()")
        (branch,) = await session.fork(files="shared")
        await run(branch, "open('gone', 'w').close()")
        await branch.undo()
        await run(branch, "open('f', 'w').write('branch'); open('new', 'w').close()")
        await wait_for_clock()
        await run(session, "open('own', 'w').close()")
        await wait_for_clock()
        await session.adopt(branch)
        await session.undo()
        assert tree(tmp_path) == {"f": "0", "first": "", "own": ""}
        await session.undo()
        assert tree(tmp_path) == {"f": "0", "own": ""}


@pytest.mark.parametrize("files", ["copy", pytest.param("shared", marks=pytest.mark.slow)])
async def test_a_branch_that_is_adopted_late_is_undone(
    zygote_host: Host, tmp_path: Path, files: Literal["copy", "shared"]
) -> None:
    """The session has dropped its own checkpoint of the state in which the branch began."""
    async with zygote_host.session(working_dir=tmp_path, recovery=Exact(keep=2)) as session:
        await run(session, "open('f', 'w').write('1')")
        (branch,) = await session.fork(files=files)
        await run(session, *(f"x = {number}" for number in range(3)))
        async with branch:
            await run(branch, "open('g', 'w').write('1')", "open('f', 'w').write('2')")
            await session.adopt(branch)
        for left in ({"f": "1", "g": "1"}, {"f": "1"}):
            await session.undo()
            assert tree(tmp_path) == left


async def test_what_snapshots_leave_out_goes_with_the_cell_that_made_it(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        made = "os.makedirs('r/.git/refs'); open('r/.git/HEAD', 'w').close(); os.mkdir('.venv')"
        await run(session, "import os", made, "x = 1")
        assert (await session.undo()).files_left == ""  # these were there before the cell
        assert (tmp_path / "r" / ".git" / "HEAD").exists()
        assert (await session.undo()).files_left == ""
        assert not [*tmp_path.iterdir()]


async def test_a_protected_name_goes_with_the_cell_that_made_it(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        made = "import os; os.mkdir('.git'); open('.git/HEAD', 'w').close(); open('.npmrc', 'w').close()"
        await run(session, "x = 1", made)
        why = "'.git/HEAD' has changed, and snapshots exclude '.git'"
        assert (await session.execute("open('.git/HEAD', 'w').write('new')")).not_undoable == why
        with pytest.raises(CheckpointError, match=re.escape(why)):
            await session.undo()
        assert {file.path for file in (await session.undo(2)).files} == {".git", ".npmrc"}
        assert not [*tmp_path.iterdir()]
        await session.redo()
        assert (tmp_path / ".git" / "HEAD").read_text() == "new"
        assert (tmp_path / ".npmrc").exists()


async def test_a_protected_name_from_the_trash_replaces_nothing(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        await run(session, "x = 1", "import os; os.mkdir('.git'); open('.git/HEAD', 'w').write('cell')")
        await session.undo()
        await session.restore_trash(".git")
        (tmp_path / ".git" / "HEAD").write_text("person")
        for path in (".git", ".git/HEAD"):
            with pytest.raises(SnapshotError, match="the session may not change it"):
                await session.restore_trash(path)
        assert (tmp_path / ".git" / "HEAD").read_text() == "person"


async def test_a_person_changes_a_protected_name_while_an_undone_cell_runs(native_host: Host, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    made = (tmp_path / ".git").stat().st_ctime_ns
    await eventually(lambda: files_time() > made)  # it was there before the sandbox, also for a coarse clock
    async with native_host.session(working_dir=tmp_path) as session:
        code = "import time, os\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)"
        running = asyncio.create_task(session.execute(code))
        await eventually((tmp_path / "begun").exists)
        (tmp_path / ".git" / "HEAD").touch()
        (tmp_path / "go").touch()
        await running
        assert (await session.undo()).files_left == ""
        assert (tmp_path / ".git" / "HEAD").exists()


async def test_no_cell_is_undone_in_part_that_changed_what_snapshots_leave_out(zygote_host: Host, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    changes = [
        "open('r/.git/refs/main', 'w').close()",
        "os.remove('r/.git/HEAD')",
        "shutil.rmtree('r/.git'); os.makedirs('r/.git/refs')",
        "os.rename('r', 's')",
        "os.remove('pipe')",
    ]
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "import os, shutil\nos.makedirs('r/.git/refs'); open('r/.git/HEAD', 'w').close()")
        for number, change in enumerate(changes):
            result = await session.execute(f"x = {number}; {change}")
            there = sorted(tmp_path.rglob("*"))
            with pytest.raises(CheckpointError, match="snapshots exclude"):
                await session.undo()
            assert "snapshots exclude" in result.not_undoable
            assert await value(session, "x") == str(number)
            assert sorted(tmp_path.rglob("*")) == there


@pytest.mark.slow
async def test_a_change_deep_in_what_snapshots_leave_out_is_found_by_the_undo(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "import os\nfor n in range(400): os.makedirs(f'.venv/{n}/1')")
        assert (await session.execute("open('.venv/7/1/file', 'w').close()")).not_undoable == ""
        with pytest.raises(CheckpointError, match=r"'\.venv/7/1' has changed, and snapshots exclude '\.venv'"):
            await session.undo()
        undone = await session.undo(partial=True)
        assert "'.venv/7/1' has changed" in undone.files_left


async def test_what_cannot_be_examined_counts_as_changed(zygote_host: Host, tmp_path: Path) -> None:
    """A folder in it that is nested without end, for one: the way to it takes the longer the deeper it is."""
    async with zygote_host.session(working_dir=tmp_path) as session:
        deep = "for _ in range(150):\n    os.mkdir('d'); os.chdir('d')"
        await run(session, f"import os\nos.mkdir('.venv'); os.chdir('.venv')\n{deep}")
        assert "snapshots exclude '.venv'" in (await session.execute("x = 1")).not_undoable
        with pytest.raises(CheckpointError, match=r"snapshots exclude '\.venv'"):
            await session.undo()


@pytest.mark.parametrize(
    "code",
    first_quick(
        [
            "import asyncio, time\nasync def late():\n    await asyncio.to_thread(time.sleep, 0.1)\n"
            "    open('t', 'w').write('new')\ntask = asyncio.create_task(late())",
            "import concurrent.futures, time\npool = concurrent.futures.ThreadPoolExecutor()\n"
            "pool.submit(lambda: (time.sleep(0.1), open('t', 'w').write('new')))",
            "import threading\nthreading.Timer(0.1, lambda: open('t', 'w').write('new')).start()",
            "import asyncio, fcntl\nlock = open('l', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\nasync def late():\n"
            "    await asyncio.sleep(0.1)\n    open('t', 'w').write('new')\ntask = asyncio.create_task(late())",
        ]
    ),
    ids=["a task that waits for a thread", "a pool", "a timer", "a task beside a lock"],
)
@pytest.mark.parametrize("later", [(), pytest.param(("1",), marks=pytest.mark.slow)], ids=["at once", "after another cell"])
async def test_what_goes_on_in_a_kernel_that_cannot_be_copied_is_undone_too(
    zygote_host: Host, tmp_path: Path, code: str, later: tuple[str, ...]
) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "open('t', 'w').write('old')", "1")
        for cell in (code, *later):
            await session.execute(cell)
        await eventually(lambda: (tmp_path / "t").read_text() == "new")
        await session.undo(1 + len(later))
        assert tree(tmp_path) == {"t": "old"}


async def test_why_a_cell_cannot_be_undone_is_the_reason_of_its_state(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "import fcntl; f = open('l', 'w'); fcntl.flock(f, fcntl.LOCK_EX)")
        assert "is locked" in (await session.execute("fcntl.flock(f, fcntl.LOCK_UN)")).not_undoable
        with pytest.raises(CheckpointError, match="is locked"):
            await session.undo()


async def test_standard_descriptors_can_be_closed(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        await run(session, "import os", "os.closerange(0, 3)", "x = 1", "x = 2")
        await session.undo()
        assert await value(session, "x") == "1"
        assert (await session.execute("os._exit(1)")).recovery == "restored"
        assert await value(session, "x") == "1"


@pytest.mark.parametrize("first", first_quick([((),), (("x = 1",),)]), ids=["to a fresh kernel", "to a checkpoint"])
async def test_with_partial_files_stay_that_cannot_be_brought_back_now(
    zygote_host: Host, tmp_path: Path, first: tuple[str, ...]
) -> None:
    (tmp_path / "env").write_text("1")
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, *first, "import os; os.remove('env'); os.makedirs('env/.venv')")
        await wait_for_clock()
        (tmp_path / "env" / ".venv" / "mine").touch()
        with pytest.raises(SnapshotError, match="a folder"):
            await session.undo()
        assert "a folder" in (await session.undo(partial=True)).files_left
        assert (tmp_path / "env").is_dir()
        assert await value(session, "'os' in globals(), 'x' in globals()") == f"(False, {bool(first)})"


@pytest.mark.slow
async def test_a_named_checkpoint_keeps_files_that_an_undo_could_not_bring_back(zygote_host: Host, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("1")
    async with zygote_host.session(working_dir=tmp_path, recovery="none") as session:
        mine = await session.checkpoint("mine", files="copy")
        await session.execute("import os; os.remove('env'); os.makedirs('env/' + 'd/' * 105)")  # too deep for snapshots
        assert "a folder" in (await session.undo(partial=True)).files_left
        shutil.rmtree(tmp_path / "env")
        await session.restore("mine")
        assert tree(tmp_path) == {"env": "1"}
        await mine.drop()


@pytest.mark.parametrize(
    ("any_host", "change"),
    in_turns(["f.write('two')", "import os; os.remove('log')", "import os; os.rename('log', 'old')"], "landlock"),
    indirect=["any_host"],
)
async def test_a_file_that_is_open_is_the_one_that_came_back(any_host: Host, tmp_path: Path, change: str) -> None:
    """Whether it is written to, or read in the middle."""
    digits = "0123456789" * 10_000
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, f"open('r', 'w').write({digits!r}); r = open('r'); n = r.read(3)")
        await run(session, "f = open('log', 'a'); print('one', file=f, flush=True)")
        await run(session, f"{change}; f.flush(); n = open('r', 'w').write('changed')")
        await session.undo()
        await run(session, "print('three', file=f, flush=True)")
        assert tree(tmp_path) == {"log": "one\nthree\n", "r": digits}
        assert await value(session, "len(r.read())") == "99997"


async def test_a_branch_has_open_files_and_databases_of_its_own(any_host: Host, tmp_path: Path) -> None:
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, "f = open('log', 'a'); print('one', file=f, flush=True)")
        await run(session, "import sqlite3; db = sqlite3.connect('db'); db.execute('create table t(x)'); db.commit()")
        (branch,) = await session.fork()
        await run(branch, "print('branch', file=f, flush=True); db.execute('insert into t values (1)'); db.commit()")
        assert (tmp_path / "log").read_text() == "one\n"
        assert await value(session, "db.execute('select count(*) from t').fetchall()") == "[(0,)]"
        assert await value(branch, "open('log').read()") == r"'one\nbranch\n'"
        await session.adopt(branch)
        result = await session.execute("print('three', file=f, flush=True)")
        told = "may have been replaced" in result.stderr  # under Landlock, where a fork cannot see what it has open
        assert told or (tmp_path / "log").read_text() == "one\nbranch\nthree\n"
        assert await value(session, "db.execute('select count(*) from t').fetchall()") == "[(1,)]"


@pytest.mark.slow
async def test_files_without_a_name_have_a_position_for_each_branch(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        made = "import os, tempfile; f = open('q', 'w+b', buffering=0); os.unlink('q'); t = tempfile.TemporaryFile('w+b', 0)"
        await run(session, f"{made}\nfor one in (f, t): one.write(b'0123456789'), one.seek(0)")
        for branch in await session.fork(2):
            assert await value(branch, "f.read(3), t.read(3)") == "(b'012', b'012')"
            await branch.close()
        await run(session, "x = 1")
        await session.undo()
        assert (await session.execute("f.read(3), t.read(3)")).stderr == ""
        await session.execute("f.write(b'new')")
        await session.undo()
        assert "has no name" in (await session.execute("1")).stderr


@pytest.mark.slow
async def test_descriptors_of_folders_and_of_what_branches_share(any_host: Host, tmp_path: Path) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "big").write_text("abcdef")
    await wait_for_clock()
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, "import os; top = os.open('.', os.O_RDONLY); f = open('node_modules/big')")
        one, other = await session.fork(2)
        assert [await value(branch, "f.read(3)") for branch in (one, other)] == ["'abc'", "'abc'"]
        await run(one, "os.close(os.open('mine', os.O_CREAT | os.O_WRONLY, dir_fd=top))")
        assert not (tmp_path / "mine").exists()
        assert await value(one, "os.path.exists('mine')") == "True"
        await one.close()
        await other.close()


async def test_the_current_directory_is_the_one_that_came_back(
    any_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with any_host.session() as session:
        await run(session, "import os, shutil; os.mkdir('d'); os.chdir('d')", "shutil.rmtree(os.getcwd())")
        await session.undo()
        await run(session, "open('f', 'w').write('1')")
        assert tree(tmp_path)["d/f"] == "1"


async def test_event_objects_have_their_counts_again_and_what_only_one_process_can_use_is_told(native_host: Host) -> None:
    make = "import ctypes, os, signal; n = ctypes.CDLL(None).inotify_init1(0)"
    timer = "signal.signal(signal.SIGALRM, lambda *_: None); signal.alarm(1000)"
    async with native_host.session() as session:
        await run(session, f"{make}; {timer}; a, b = os.eventfd(3, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)")
        await run(session, "os.eventfd_read(a); os.eventfd_write(b, 5)")
        await session.undo()
        told = (await session.execute("signal.alarm(0)")).stderr
        assert "of inotify was closed" in told
        assert "Timers (signal.alarm, signal.setitimer) have stopped" in told
        assert await value(session, "os.eventfd_read(a)") == "3"
        assert (await session.execute("os.eventfd_read(b)")).error is not None


@pytest.mark.slow
async def test_a_map_of_a_file_that_was_replaced_is_told(native_host: Host, tmp_path: Path) -> None:
    made = "import mmap; f = open('m', 'w+b'); f.write(b'1' * 9); f.flush(); m = mmap.mmap(f.fileno(), 9); f.close()"
    async with native_host.session(working_dir=tmp_path) as session:
        await run(session, made, "m[:] = b'2' * 9; m.flush()")
        await session.undo()
        assert "its memory map still shows the old content" in (await session.execute("bytes(m)")).stderr
        (branch,) = await session.fork()
        assert "memory map" in (await branch.execute("1")).stderr
        await branch.close()


# -- between two cells -------------------------------------------------------------------------------------------------

TICK = """
import asyncio
ticks = 0
def tick():
    global ticks
    ticks += 1
    with open('log', 'a') as log:
        print(ticks, file=log)
"""
TASK = """
async def keep_ticking():
    while True:
        tick()
        await asyncio.sleep(0.0005)
ticking = asyncio.create_task(keep_ticking())
"""
CALLBACK = """
def again():
    tick()
    asyncio.get_running_loop().call_later(0.0005, again)
again()
"""
TIMER = """
import signal
def again(*_):
    tick()
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
signal.signal(signal.SIGALRM, again)
again()
"""
READER = """
import contextlib, os
ours, theirs = os.pipe2(os.O_NONBLOCK)
def again():
    with contextlib.suppress(BlockingIOError):  # in a copy it is empty
        os.read(ours, 1)
    tick()
    os.write(theirs, b'.')
asyncio.get_running_loop().add_reader(ours, again)
os.write(theirs, b'.')
"""


async def ticks(session: Session, workspace: Path) -> int:
    """Return how often code has ticked: by its variable, and by a file, which must agree at any moment."""
    agrees = "[*map(int, open('log'))] == [*range(1, ticks + 1)]"
    blocked = "import signal; signal.pthread_sigmask(signal.{}, [signal.SIGALRM])"
    check = f"said = ticks if {agrees} else (ticks, open('log').read())"
    said = await value(session, f"{blocked.format('SIG_BLOCK')}\n{check}\n{blocked.format('SIG_UNBLOCK')}\nsaid")
    assert said.isdigit(), said
    return int(said)


@pytest.mark.parametrize(
    ("any_host", "left"),
    in_turns({"task": TASK, "callback": CALLBACK, "timer": TIMER, "reader": READER}),
    indirect=["any_host"],
)
async def test_what_goes_on_between_cells_is_undone_up_to_the_cell(any_host: Host, tmp_path: Path, left: str) -> None:
    """The state before a cell is that in which it began, and not the end of the cell before it."""
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, TICK, left)
        for round_ in range(2):
            gone = await ticks(session, tmp_path)  # cells, too
            await run(session, "before = ticks", f"y = {round_}")
            await session.undo(1 + round_ % 2)
            assert await ticks(session, tmp_path) >= gone  # what happened before those cells has stayed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(2)
async def test_tasks_and_cells_in_any_order_are_undone(any_host: Host, tmp_path: Path, seed: int) -> None:
    """With checkpoints, branches, and pauses of any length."""
    chance = random.Random(f"{seed} {date.today()}")
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, TICK, TASK, "x = 0")
        for number in range(40):
            match chance.choice(["cell", "cell", "cell", "undo", "undo", "checkpoint", "branch", "complete"]):
                case "cell":
                    await run(session, f"x = {number}")
                case "undo" if len([cell for cell in session.history() if not cell.abandoned]) > 5:
                    await session.undo(chance.choice([1, 1, 2]))
                case "checkpoint":
                    mark = await session.checkpoint(files="copy")
                    await run(session, f"x = {number}")
                    await session.restore(mark)
                case "branch":
                    (branch,) = await session.fork(files="copy")
                    async with branch:
                        await ticks(branch, tmp_path)
                        if chance.random() < 0.5:
                            await session.adopt(branch)
                case "complete":
                    await session.complete("tick")
            if chance.random() < 0.5:
                await asyncio.sleep(0.02 * chance.random())
            await ticks(session, tmp_path)


@pytest.mark.slow
async def test_tasks_go_on_after_a_checkpoint_of_any_kind(any_host: Host, tmp_path: Path) -> None:
    for recovery in ("exact", "rolling", "none"):
        workspace = tmp_path / recovery
        workspace.mkdir()
        async with any_host.session(working_dir=workspace, recovery=recovery) as session:
            await session.execute(f"{TICK}{TASK}")
            await session.checkpoint()
            seen = (workspace / "log").stat().st_size
            await eventually(lambda: (workspace / "log").stat().st_size > seen + 10)  # noqa: B023  # it is over by then


ENDLESS = """
async def endless():
    try:
        while True:
            await asyncio.sleep(0)
    finally:
        open('exit', 'w').close()
asyncio.create_task(endless())
tick()
"""


@pytest.mark.parametrize(
    ("any_host", "left"), in_turns({"task": TASK, "timer": TIMER, "endless": ENDLESS}), indirect=["any_host"]
)
async def test_what_is_compared_goes_on_nowhere_and_ends_without_a_trace(any_host: Host, tmp_path: Path, left: str) -> None:
    """The kernels for that have exit handlers, and text that they have not written to files yet."""
    exit_handler = "import atexit; atexit.register(lambda: open('exit', 'w').close())"
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with any_host.session(working_dir=workspace) as session:
        await run(session, f"{TICK}{left}", f"{exit_handler}\nlater = open('later', 'w'); n = later.write('later')")
        before = await session.checkpoint()
        await session.save(tmp_path / "saved")
        for until in (None, await session.checkpoint()):
            await session.diff(before, until)
        state = session.saving.last_state
        await session.saving.save_aside(state.number, tmp_path / "aside")
        assert await ticks(session, workspace) > 0
        assert (workspace / "later").read_text() == ""
        assert not (workspace / "exit").exists()


IDLE = {
    "timer": "asyncio.get_running_loop().call_later(60, tick)",
    "task": "asyncio.create_task(asyncio.sleep(60))",
    "reader": "import socket; pair = socket.socketpair(); asyncio.get_running_loop().add_reader(pair[0], tick)",
}


@pytest.mark.parametrize(("any_host", "left"), in_turns(IDLE), indirect=["any_host"])
async def test_what_others_save_while_nothing_of_a_session_runs_is_theirs(any_host: Host, tmp_path: Path, left: str) -> None:
    """Although a task or a callback could run at any time."""
    async with any_host.session(working_dir=tmp_path) as session:
        await run(session, f"{TICK}\n{left}; None", "open('f', 'w').close()")
        for number in range(2):
            await session._checkpoints.automatic.made()  # until then, it counts as the session's
            await wait_for_clock()
            (tmp_path / "mine").write_text(str(number))
            await wait_for_clock()
            await run(session, "open('mine', 'a').write('cell')", "open('f', 'a').write('1')")
            await session.undo(2)
            assert tree(tmp_path) == {"f": "", "mine": str(number)}
        await session.undo()
        assert tree(tmp_path) == {"mine": "1"}


async def test_a_cell_is_not_undone_to_a_state_from_before_what_tasks_did(
    zygote_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is no memory for another copy, the last one does not count for it."""
    async with zygote_host.session() as session:
        await run(session, TICK.replace("log", "/dev/null", 1) + TASK)
        await session._checkpoints.automatic.made()
        monkeypatch.setattr(MemoryWatch, "short", True)
        assert "too much of its memory" in (await session.execute("x = 1")).not_undoable
        with pytest.raises(CheckpointError):
            await session.undo()
