"""Which threads only wait for work, so that a copy of their process can do without them. What copies do then: tests/fork."""

from __future__ import annotations

from scripts import Script

_ASK = """
import sys, threading, time
from cellblock.worker.forks.pools import reset_of
def harmless():
    "Whether a copy could do without each thread."
    return {reset_of(thread, sys._current_frames()[thread.ident]) is not None
            for thread in threading.enumerate() if thread is not threading.main_thread()}
def eventually(wanted):
    deadline = time.monotonic() + 20
    while harmless() != wanted and time.monotonic() < deadline: time.sleep(0.001)
    print(harmless())
"""


def test_a_pool_of_threads_is_harmless_while_it_has_nothing_to_do(printed: Script) -> None:
    script = f"""{_ASK}
from concurrent.futures import ThreadPoolExecutor
go, pool = threading.Event(), ThreadPoolExecutor(1)
running = pool.submit(go.wait)
eventually({{False}})
go.set()
running.result()
eventually({{True}})
"""
    assert printed(script) == ["{False}", "{True}"]


def test_work_that_waits_for_a_thread_is_not_given_up(printed: Script) -> None:
    script = f"""{_ASK}
from concurrent.futures import ThreadPoolExecutor
go, pool = threading.Event(), ThreadPoolExecutor(1)
for _ in range(2): pool.submit(go.wait)
eventually({{False}})
go.set()
"""
    assert printed(script) == ["{False}"]


def test_a_thread_of_the_code_itself_is_needed(printed: Script) -> None:
    script = f"""{_ASK}
go = threading.Event()
threading.Thread(target=go.wait).start()
eventually({{False}})
go.set()
"""
    assert printed(script) == ["{False}"]


def test_a_thread_that_only_looks_like_one_of_a_library_is_needed(printed: Script) -> None:
    script = f"""{_ASK}
go = threading.Event()
class TMonitor(threading.Thread): pass
class _ExecutorManagerThread(threading.Thread): pass
for kind in TMonitor, _ExecutorManagerThread: kind(target=go.wait).start()
eventually({{False}})
go.set()
"""
    assert printed(script) == ["{False}"]


def test_a_queue_is_harmless_when_its_thread_has_sent_all(printed: Script) -> None:
    script = f"""{_ASK}
import multiprocessing
queue = multiprocessing.Queue()
queue.put(1)
queue.get()
eventually({{True}})
"""
    assert printed(script) == ["{True}"]
