"""Which threads a process has besides its main one, and whose code they run."""

from __future__ import annotations

from scripts import Script


def test_a_process_with_one_thread_has_no_others(printed: Script) -> None:
    assert printed("from cellblock.worker.forks.threads import other_threads\nprint(other_threads())") == ["{}"]


def test_threads_are_told_apart_by_the_file_of_the_code_that_they_run(printed: Script) -> None:
    script = """
import ctypes, os, threading
from cellblock.worker.forks.threads import file_of, other_threads
go = threading.Event()
python = threading.Thread(target=go.wait)
python.start()
libc = ctypes.CDLL(None)
assert libc.pthread_create(ctypes.byref(ctypes.c_void_p()), None, libc.sleep, 600) == 0
found = other_threads()
ours = file_of(ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value)
(other,) = set(found) - {python.native_id}
print(found[python.native_id] == ours, "libc" in found[other], os.getpid() in found, flush=True)
os._exit(0)
"""
    assert printed(script) == ["True True False"]


def test_a_thread_that_has_ended_is_not_told(printed: Script) -> None:
    script = """
import os, threading
from cellblock.worker.forks.threads import other_threads
thread = threading.Thread(target=lambda: None)
thread.start()
thread.join()
while len(os.listdir("/proc/self/task")) > 1: pass  # it ends a moment after `join` returns
print(other_threads())
"""
    assert printed(script) == ["{}"]


def test_threads_are_known_although_proc_has_other_numbers_for_them(printed: Script) -> None:
    script = """
import ctypes, os, threading
from cellblock.walls.linux.abi import CLONE_NEWPID, CLONE_NEWUSER
from cellblock.worker.forks.threads import file_of, name_of, other_threads
assert ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(os.getpid(), other_threads())
named, go = threading.Event(), threading.Event()
def wait():
    with open("/proc/thread-self/comm", "w") as name: name.write("waits")
    named.set()
    go.wait()
thread = threading.Thread(target=wait)
thread.start()
named.wait()
found = other_threads()
ours = file_of(ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value)
print(found == {thread.native_id: ours}, name_of(thread.native_id), flush=True)
go.set()
thread.join()
while len(os.listdir("/proc/self/task")) > 1: pass
print(name_of(thread.native_id), flush=True)
os._exit(0)
"""
    assert printed(script) == ["1 {}", "True waits", "None"]


def test_memory_where_nothing_is_mapped_is_an_error_and_not_the_end(printed: Script) -> None:
    script = """
from cellblock.worker.forks.threads import _Memory
with _Memory() as memory:
    try:
        memory.word(8)
    except OSError as error:
        print(error.strerror)
"""
    assert printed(script) == ["nothing is mapped there"]
