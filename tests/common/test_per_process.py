"""What is made once in a process."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from cellblock.common.per_process import PerProcess


class Made:
    """What is made of a name."""

    def __init__(self, name: str) -> None:
        """Take the time in which another thread could make it, too."""
        self.name, self.usable = name, True
        time.sleep(0.01)


def test_all_threads_have_the_same_of_the_same_arguments() -> None:
    shared = PerProcess(Made)
    with ThreadPoolExecutor(4) as threads:
        a, *others = threads.map(shared, ["a"] * 4)
    assert all(other is a for other in others)
    assert shared("b") is not a
    assert (a.name, shared("b").name) == ("a", "b")


def test_what_is_not_usable_any_more_is_made_anew() -> None:
    shared = PerProcess(Made)
    first = shared("a")
    first.usable = False
    second = shared("a")
    assert second is not first
    assert shared("a") is second


def test_after_a_fork_there_is_another_even_if_a_thread_was_making_one() -> None:
    begun, over = threading.Event(), threading.Event()

    def make(name: str) -> Made:
        if name == "slow":
            begun.set()
            over.wait(30)
        return Made(name)

    shared = PerProcess(make)
    first = shared("a")
    making = threading.Thread(target=shared, args=["slow"])
    making.start()
    begun.wait()
    if (child := os.fork()) == 0:
        os._exit(0 if shared("a") is not first else 1)
    over.set()
    making.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shared("a") is first
