"""Why a process cannot be copied, and what a copy has to be told. What libraries do in a copy: tests/fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Every script runs in a process of its own, which is waited for."""


def printed(script: str) -> list[str]:
    """Return the lines that a script prints."""
    script = f"import os, sys, threading, time\nfrom cellblock.worker.fork_safety import *\n{script}"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout.splitlines()


def test_a_process_with_one_thread_can_be_copied() -> None:
    assert printed("print(refusal())") == ["None"]


def test_nothing_is_imported_for_it() -> None:
    script = """
before = set(sys.modules)
refusal(), prepare(), part(2), repair()
print(set(sys.modules) - before)
"""
    assert printed(script) == ["set()"]


def test_a_thread_is_named() -> None:
    script = """
go = threading.Event()
thread = threading.Thread(target=go.wait, name="watcher")
thread.start()
print(refusal())
print(refusal(ours=[thread.native_id]))
go.set()
thread.join()
print(refusal())
"""
    assert printed(script) == [
        'the thread "watcher" is running, which a copy would not have: stop it, or wait until it ends',
        "None",
        "None",
    ]


def test_a_name_is_shown_without_what_a_terminal_would_obey_and_not_at_any_length() -> None:
    script = """
go = threading.Event()
thread = threading.Thread(target=go.wait, name="\\x1b]52;c;AAAA\\a" + "x" * 10_000, daemon=True)
thread.start()
print(refusal())
go.set()
"""
    (reason,) = printed(script)
    assert reason.startswith('the thread "\\x1b]52;c;AAAA\\x07xxx')
    assert len(reason) < 500


def test_a_thread_that_threading_does_not_know_is_seen() -> None:
    script = """
import _thread
go = _thread.allocate_lock()
go.acquire()
_thread.start_new_thread(go.acquire, ())
print(refusal())
go.release()
"""
    (reason,) = printed(script)
    assert reason.startswith("a thread without a name is running")


def test_a_thread_of_an_unknown_library_is_named_by_its_file() -> None:
    """Such as the thread that glibc itself starts for notifications of timers."""
    script = """
import ctypes
libc = ctypes.CDLL(None)
thread = ctypes.c_void_p()
assert libc.pthread_create(ctypes.byref(thread), None, libc.sleep, 600) == 0
print(refusal())
os._exit(0) if not sys.stdout.flush() else None
"""
    (reason,) = printed(script)
    assert reason.startswith("libc.so.6 has started 1 thread, ")
    assert "save()" in reason


@pytest.mark.parametrize("lock", ["lockf(f, fcntl.LOCK_EX)", "lockf(f, fcntl.LOCK_EX, 1, 7)"])
def test_a_file_that_is_locked_is_named_until_it_is_closed(lock: str, tmp_path: Path) -> None:
    script = f"""
import fcntl
f = open({str(tmp_path)!r} + "/f", "w")
print(refusal())
fcntl.{lock}
print(refusal())
f.close()
print(refusal())
"""
    free, held, closed = printed(script)
    assert (free, closed) == ("None", "None")
    assert held == f"the file {tmp_path}/f is locked by this session, and a copy would not have the lock: close the file"


@pytest.mark.parametrize("lock", ["lockf(f, fcntl.LOCK_SH)", "flock(f, fcntl.LOCK_EX)"])
def test_locks_that_others_may_have_too_or_that_copies_share_are_no_obstacle(lock: str, tmp_path: Path) -> None:
    script = f"""
import fcntl
f = open({str(tmp_path)!r} + "/f", "w+")
fcntl.{lock}
print(refusal())
"""
    assert printed(script) == ["None"]


def test_the_lock_of_another_process_is_no_obstacle(tmp_path: Path) -> None:
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
    own, other = printed(script)
    assert "is locked by this session" in own
    assert other == "None"


def test_what_cannot_be_repaired_is_told_and_the_rest_is_repaired() -> None:
    script = """
from cellblock.worker import fork_safety
class Pool: pass
def broken(): raise RuntimeError("broken by the code")
refusal()
prepare()
fork_safety._prepared.resets = [broken, lambda: "The pool is closed."]
print(repair())
"""
    assert printed(script) == [
        "['Something could not be repaired in the copy: RuntimeError: broken by the code', 'The pool is closed.']"
    ]
