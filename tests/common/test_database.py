"""Database files: private, whole, and shared by processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cellblock import StoreError
from cellblock.common.database import Database

SCHEMA = "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, n INTEGER); INSERT OR IGNORE INTO counts VALUES ('a', 0)"


def count(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute("SELECT n FROM counts").fetchone()[0])


def test_directory_and_file_are_for_this_user_alone(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    Database(directory, "x.db", SCHEMA)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "x.db").stat().st_mode) == 0o600


def test_a_directory_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Database(tmp_path, "x.db", SCHEMA)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(StoreError, match=f"{tmp_path} is writable by other users"):
        Database(tmp_path, "x.db", SCHEMA)
    assert not os.listdir(tmp_path)


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    other = Path("/") if os.geteuid() else tmp_path
    if not os.geteuid():
        os.chown(tmp_path, 65534, 65534)
    with pytest.raises(StoreError, match="belongs to another user"):
        Database(other, "x.db", SCHEMA)


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file cannot be used"):
        Database(tmp_path / "file", "x.db", SCHEMA)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "x.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"x\.db cannot be used"):
        Database(tmp_path, "x.db", SCHEMA)
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is text, and long enough to be looked at by SQLite as a header\n" * 20)
    with pytest.raises(StoreError, match=r"x\.db cannot be used: file is not a database"):
        Database(tmp_path, "x.db", SCHEMA)


def test_a_transaction_happens_wholly_or_not_at_all(tmp_path: Path) -> None:
    database = Database(tmp_path, "x.db", SCHEMA)

    def set_and(fail: Callable[[sqlite3.Connection], object]) -> None:
        with database.transaction() as connection:
            connection.execute("UPDATE counts SET n = 5")
            fail(connection)

    with pytest.raises(ZeroDivisionError):
        set_and(lambda _: 1 / 0)
    assert count(database) == 0
    with pytest.raises(StoreError):
        set_and(lambda connection: connection.execute("UPDATE nothing SET n = 5"))
    assert count(database) == 0
    with database.transaction() as connection:
        connection.execute("UPDATE counts SET n = 5")
    assert count(Database(tmp_path, "x.db", SCHEMA)) == 5


def test_a_writer_that_is_killed_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    database = Database(tmp_path, "x.db", SCHEMA)
    program = f"""
import os, signal
from pathlib import Path
from cellblock.common.database import Database
with Database(Path({str(tmp_path)!r}), "x.db", {SCHEMA!r}).transaction() as connection:
    connection.execute("UPDATE counts SET n = 5")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert count(database) == 0
    with database.transaction() as connection:
        connection.execute("UPDATE counts SET n = 1")
    assert count(database) == 1


SECONDS = float(os.environ.get("TEST_SECONDS", "8"))
"""Seconds for which processes are killed; more of them by hand."""

NOTES = "CREATE TABLE IF NOT EXISTS notes (text TEXT PRIMARY KEY)"

USER = """
import sys
from pathlib import Path
from cellblock.common.database import Database
directory, schema = Path(sys.argv[1]), sys.argv[2]

def note(database, text):
    with database.transaction() as connection:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))
"""


def run(body: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that has the functions of `USER`."""
    return subprocess.run(
        [sys.executable, "-c", USER + body, str(directory), NOTES], capture_output=True, text=True, check=False, timeout=60
    )


def note(database: Database, text: str) -> None:
    with database.transaction() as connection:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))


def notes(directory: Path) -> set[str]:
    with closing(sqlite3.connect(directory / "x.db")) as connection:
        return {text for (text,) in connection.execute("SELECT text FROM notes")}


def test_a_second_user_of_a_file_does_not_drop_the_locks_of_the_first(tmp_path: Path) -> None:
    """Otherwise, a process that closes the file last removes the log in which this one writes."""
    first = Database(tmp_path, "x.db", NOTES)
    Database(tmp_path, "x.db", NOTES).close()
    assert run('Database(directory, "x.db", schema).close()', tmp_path).stderr == ""
    note(first, "kept")
    assert notes(tmp_path) == {"kept"}


def test_a_forked_process_does_not_use_the_connection_of_its_parent(tmp_path: Path) -> None:
    """SQLite would take the locks of the parent for its own: when the parent has ended, the next process removes the log."""
    body = """
import os, subprocess, time
database = Database(directory, "x.db", schema)
note(database, "parent")
parent = os.getpid()
if os.fork():
    note(database, "parent again")
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
note(database, "child")
program = "import sys; from pathlib import Path; from cellblock.common.database import Database; "
program += "Database(Path(sys.argv[1]), 'x.db', sys.argv[2]).close()"
subprocess.run([sys.executable, "-c", program, *sys.argv[1:]], check=True)
note(database, "child again")
print("done", flush=True)
os._exit(0)  # does not close the file, which would write what is in a log that was removed
"""
    done = run(body, tmp_path)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert notes(tmp_path) == {"parent", "parent again", "child", "child again"}


@pytest.mark.slow
def test_a_fork_while_other_threads_write(tmp_path: Path) -> None:
    body = """
import os, threading
database = Database(directory, "x.db", schema)
ended = threading.Event()

def write(thread):
    number = 0
    while not ended.is_set():
        note(database, f"{thread}-{number}")
        number += 1
    print(thread, number)

threads = [threading.Thread(target=write, args=(thread,)) for thread in range(3)]
for thread in threads:
    thread.start()
for number in range(30):
    if not (child := os.fork()):
        note(database, f"child-{number}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
ended.set()
for thread in threads:
    thread.join()
"""
    done = run(f"import warnings; warnings.simplefilter('ignore')\n{body}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = {f"child-{number}" for number in range(30)}
    for line in done.stdout.splitlines():
        thread, count = line.split()
        told |= {f"{thread}-{number}" for number in range(int(count))}
    assert notes(tmp_path) == told


@pytest.mark.slow
def test_threads_share_a_connection(tmp_path: Path) -> None:
    database = Database(tmp_path, "x.db", NOTES)

    def write(thread: int) -> None:
        for number in range(50):
            note(database, f"{thread}-{number}")

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(notes(tmp_path)) == 200


async def test_writing_in_a_loop_waits_for_another_process_and_blocks_nobody(tmp_path: Path) -> None:
    database = Database(tmp_path, "x.db", NOTES)
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(database.write("INSERT INTO notes VALUES ('late')"))
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert not writing.done()
    with pytest.raises(StoreError, match="other processes are writing"):
        await database.write("INSERT INTO notes VALUES ('never')", patience=0)
    other.execute("COMMIT")
    await writing
    other.close()
    assert notes(tmp_path) == {"late"}


@pytest.mark.slow
def test_the_version_changes_with_every_change(tmp_path: Path) -> None:
    first, second = (Database(tmp_path, "x.db", NOTES) for _ in range(2))
    seen = [first.version()]
    assert first.version() == seen[0]
    note(second, "by the same process")
    seen.append(first.version())
    assert run('note(Database(directory, "x.db", schema), "by another")', tmp_path).stderr == ""
    seen.append(first.version())
    for path in tmp_path.iterdir():
        path.unlink()
    seen.append(first.version())
    assert len({*seen}) == 4


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    database = Database(tmp_path, "x.db", NOTES)
    note(database, "gone")
    for path in tmp_path.iterdir():
        path.unlink()
    note(database, "there")
    assert notes(tmp_path) == {"there"}
    assert stat.S_IMODE((tmp_path / "x.db").stat().st_mode) == 0o600


@pytest.mark.slow
def test_twenty_processes_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """They open, write and close the file, and are killed, for some seconds."""
    body = f"""
import itertools, os, random, signal, time

def use():
    told = os.open(directory / f"told-{{os.getpid()}}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stays = Database(directory / "state", "x.db", schema)
    Database(directory / "state", "x.db", schema).close()
    visits = random.random() < 0.2  # closes the file mostly when no other visitor has it open
    for number in itertools.count():
        text = f"{{os.getpid()}}-{{number}}"
        note(stays, text)
        os.write(told, f"{{text}} ".encode())
        if visits:
            stays.close()
        time.sleep(0.1 if visits else 0.02)

def begin():
    if child := os.fork():
        return child
    try:
        use()
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
    os._exit(1)

running, until, chosen = [begin() for _ in range(20)], time.monotonic() + {SECONDS}, random.Random(1)
killed = 0
while time.monotonic() < until or killed < 20:
    time.sleep(0.2)
    place = chosen.randrange(20)
    if (directory / f"told-{{running[place]}}").exists():
        os.kill(running[place], signal.SIGKILL)
        os.waitpid(running[place], 0)
        running[place], killed = begin(), killed + 1
for child in running:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
    program = [sys.executable, "-c", USER + body, str(tmp_path), NOTES]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = {text for path in tmp_path.glob("told-*") for text in path.read_text().split()}
    assert len(told) > 100
    assert told <= notes(tmp_path / "state")
    with closing(sqlite3.connect(tmp_path / "state" / "x.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
