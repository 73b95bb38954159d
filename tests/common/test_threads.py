"""Threads when there is no room for another one."""

from __future__ import annotations

import threading

import pytest

from cellblock.common.threads import Threads, run_aside
from no_threads import no_room


def test_a_pool_goes_on_with_the_threads_that_it_has() -> None:
    with Threads(4, "test") as pool:
        begun, go = threading.Event(), threading.Event()

        def hold() -> bool:
            begun.set()
            return go.wait(10)

        held = pool.submit(hold)
        assert begun.wait(10)
        with no_room():
            others = [pool.submit(pow, 2, number) for number in range(5)]
            go.set()
            assert [other.result(10) for other in others] == [1, 2, 4, 8, 16]
        assert held.result(10)


def test_a_pool_without_any_thread_says_so() -> None:
    with no_room(), pytest.raises(RuntimeError):
        Threads(4, "test")


def test_what_cannot_have_a_thread_of_its_own_is_done_here() -> None:
    done: list[threading.Thread] = []
    with no_room():
        run_aside(lambda: done.append(threading.current_thread()), "test")
    assert done == [threading.current_thread()]
