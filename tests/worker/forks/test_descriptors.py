"""Locks on files, which a copy would not have, and sockets within a process. What libraries make of theirs: tests/fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import Script
from suite import first_quick


@pytest.mark.parametrize(
    "lock", first_quick(["lockf(f, fcntl.LOCK_EX)", "lockf(f, fcntl.LOCK_EX, 1, 7)", "flock(f, fcntl.LOCK_EX)"])
)
def test_a_file_that_is_locked_is_named_until_it_is_closed(refusals: Script, lock: str, tmp_path: Path) -> None:
    script = f"""
import fcntl
f = open({str(tmp_path)!r} + "/f", "w")
print(refusal())
fcntl.{lock}
print(refusal())
f.close()
print(refusal())
"""
    free, held, closed = refusals(script)
    assert (free, closed) == ("None", "None")
    assert held == f"the file {tmp_path}/f is locked by this session, and checkpoints cannot contain locks: close the file"


@pytest.mark.parametrize("lock", first_quick(["lockf(f, fcntl.LOCK_SH)", "flock(f, fcntl.LOCK_SH)"]))
def test_locks_that_others_may_have_too_are_no_obstacle(refusals: Script, lock: str, tmp_path: Path) -> None:
    script = f"""
import fcntl
f = open({str(tmp_path)!r} + "/f", "w+")
fcntl.{lock}
print(refusal())
"""
    assert refusals(script) == ["None"]


@pytest.mark.parametrize("mode", first_quick(["delete", "wal"]))
def test_a_transaction_is_as_safe_after_the_refusal_as_before(refusals: Script, mode: str, tmp_path: Path) -> None:
    script = f"""
import sqlite3
path = {str(tmp_path)!r} + "/f"
database = sqlite3.connect(path)
database.execute("pragma journal_mode={mode}")
database.execute("create table t(x)")
database.execute("insert into t values (1)")
print(refusal())
if not (child := os.fork()):
    try:
        sqlite3.connect(path, timeout=0).execute("insert into t values (2)")
        print("written")
    except sqlite3.OperationalError as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print(refusal())
"""
    refused = f"a transaction is open in the SQLite database {tmp_path}/f: commit it, or roll it back"
    assert [line.replace("f-shm", "f") for line in refusals(script)] == [refused, "database is locked", refused]


def test_the_lock_of_another_process_is_no_obstacle(refusals: Script, tmp_path: Path) -> None:
    script = f"""
import fcntl
f = open({str(tmp_path)!r} + "/f", "w+")
reader, writer = os.pipe()
if not (child := os.fork()):
    fcntl.lockf(f, fcntl.LOCK_EX)
    os.write(writer, str(refusal()).encode())
    time.sleep(600)
print(os.read(reader, 1000).decode())
print(refusal())
os.kill(child, 9)
"""
    own, other = refusals(script)
    assert "is locked by this session" in own
    assert other == "None"


def test_a_loop_in_a_copy_has_wake_up_sockets_of_its_own(refusals: Script) -> None:
    script = """
import asyncio
from cellblock.worker.forks.descriptors import Descriptors, separate
loop = asyncio.new_event_loop()
closed = asyncio.new_event_loop()
closed.close()
seen = Descriptors.now()
if not (child := os.fork()):
    separate(seen, 2)
    loop.call_soon_threadsafe(loop.stop)  # would wake up the original
    loop.run_forever()
    loop.call_soon_threadsafe(abs, 1)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
import select
print(select.select([loop._ssock], [], [], 0)[0])
"""
    assert refusals(script) == ["0", "[]"]


def test_what_was_in_a_pipe_is_missed_aloud_and_stays_in_the_original(refusals: Script) -> None:
    script = """
import multiprocessing
full, empty = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()
full.put("one")
refusal()
prepare()
if not (child := os.fork()):
    part(2)
    print(*repair(), full.empty())
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print(full.get(), empty.empty())
"""
    missed, original = refusals(script)
    assert missed == "A pipe or multiprocessing queue lost 22 unread bytes: send them again. True"
    assert original == "one True"
