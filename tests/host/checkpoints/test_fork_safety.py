"""What sessions say of libraries and connections that do not survive, and that the others go on, in each kind of sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import CheckpointError, CodeExecutionChunk, CodeExecutionResult, Host
from cells import ok, value

THREAD = "import threading; e = threading.Event(); t = threading.Thread(target=e.wait, name='mine'); t.start()"
LOCK = "import sqlite3; c = sqlite3.connect('d.sqlite'); c.execute('create table t(x)'); c.execute('insert into t values (1)')"


async def test_what_would_not_survive_is_refused_by_name_also_in_copies(any_host: Host, tmp_path: Path) -> None:
    async with any_host.session(working_dir=tmp_path, recovery="none") as session:
        checkpoint = await session.checkpoint()
        for _ in range(2):  # in a kernel, and in a kernel that was made of a copy
            await ok(session, THREAD)
            with pytest.raises(CheckpointError, match='"mine" is running'):
                await session.checkpoint()
            await ok(session, f"e.set(); t.join()\n{LOCK}")
            with pytest.raises(CheckpointError, match=r"locked|transaction is open"):
                await session.checkpoint()
            await ok(session, "c.rollback(); c.execute('drop table t'); c.commit(); c.close()")
            await (await session.checkpoint()).drop()
            await session.restore(checkpoint)
        await checkpoint.drop()


async def test_pools_and_databases_go_on_and_what_did_not_come_along_is_told(
    any_host: Host, landlock_host: Host, tmp_path: Path
) -> None:
    async with any_host.session(working_dir=tmp_path, recovery="none") as session:
        code = """
            import sqlite3, subprocess, concurrent.futures
            pool = concurrent.futures.ThreadPoolExecutor(2); list(pool.map(abs, [-1]))
            database = sqlite3.connect("d.sqlite"); database.execute("create table t(x)"); database.commit()
            process = subprocess.Popen(["sleep", "600"])
        """
        await ok(session, code)
        checkpoint = await session.checkpoint()
        for number in range(1, 3):
            await session.restore(checkpoint)
            result = await session.execute(
                """
                database.execute("insert into t values (1)"); database.commit()
                list(pool.map(abs, [-1])), database.execute("select count(*) from t").fetchone()[0], process.wait()
                """
            )
            assert result.return_value == f"([1], {number}, -9)"
            names = "of unknown name" if any_host is landlock_host else "sleep"
            assert result.stderr == f"[cellblock] Background processes are not restored; start them again: {names}.\n"
        await checkpoint.drop()
        assert await value(session, "concurrent.futures.wait([pool.submit(abs, -1)])[0].pop().result()") == 1


async def test_the_cell_that_has_a_library_start_threads_says_so_once(any_host: Host, tmp_path: Path) -> None:
    async with any_host.session(working_dir=tmp_path, recovery="none") as session:
        assert (await session.execute(THREAD)).stderr == ""  # of its own threads the code knows
        code = """
            import ctypes
            libc, thread = ctypes.CDLL(None), ctypes.c_void_p()
            libc.pthread_create(ctypes.byref(thread), None, libc.sleep, 600)
        """
        said = (await session.execute(code)).stderr
        assert said.startswith("[cellblock] libc.so.6 has started 1 thread, which checkpoints cannot contain. ")
        assert "undo, fork and recovery after a crash do not work" in said
        assert (await session.execute(code)).stderr == ""
        await ok(session, "e.set()")


async def test_the_result_of_a_crash_says_what_is_not_restored(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        await ok(session, "import os\nreader, writer = os.pipe()\nos.write(writer, b'12345678')")
        events = [event async for event in session.stream("os.kill(os.getpid(), 9)")]
        died = events[-1]
        assert isinstance(died, CodeExecutionResult)
        assert (died.status, died.stderr) == (
            "died",
            "[cellblock] A pipe or multiprocessing queue lost 8 unread bytes: send them again.\n",
        )
        assert "".join(event.text for event in events[:-1] if isinstance(event, CodeExecutionChunk)) == died.stderr
        assert (await session.execute("1")).stderr == ""
