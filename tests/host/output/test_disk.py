"""What is done in a thread, in order."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from cellblock.host.output import disk
from cellblock.host.output.disk import DiskThread
from no_threads import no_room
from processes import eventually


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle threads end soon."""
    monkeypatch.setattr(disk, "_LINGER", 0.01)


async def test_everything_is_done_in_order_and_counted() -> None:
    thread, gate = DiskThread(), threading.Event()
    seen: list[int] = []
    thread.do(gate.wait, 5)  # type: ignore[arg-type]  # what it returns is not used
    for number in range(100):
        thread.do(partial(seen.append, number), 1)
    assert thread.waiting == 105
    gate.set()
    await thread.done()
    assert seen == [*range(100)]
    await eventually(lambda: thread.waiting == 0)


async def test_the_thread_ends_and_comes_again() -> None:
    thread = DiskThread()
    seen: list[object] = []
    for number in range(3):
        thread.do(partial(seen.append, threading.active_count))
        await thread.done()
        assert len(seen) == number + 1
        await eventually(lambda: not any(one.name == "cellblock-disk" for one in threading.enumerate()))


async def test_without_room_for_a_thread_it_is_done_here() -> None:
    thread = DiskThread()
    seen: list[threading.Thread] = []
    with no_room():
        for _ in range(2):
            thread.do(lambda: seen.append(threading.current_thread()), 5)
            await thread.done()
    assert seen == [threading.current_thread()] * 2
    assert thread.waiting == 0
    thread.do(lambda: seen.append(threading.current_thread()))
    await thread.done()
    assert seen[2] is not threading.current_thread()
