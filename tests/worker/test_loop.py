"""The worker's loop: an interrupt hits the cell and nothing else, and a fork gets a loop of its own."""

from __future__ import annotations

import asyncio
import selectors
import signal
import socket
from collections.abc import Iterator

import pytest

from cellblock.worker.loop import Interrupter, has_work
from worker_end import run


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that nobody else uses."""
    loop = asyncio.SelectorEventLoop(selectors.PollSelector())
    yield loop
    loop.close()


@pytest.fixture
def interrupter(loop: asyncio.AbstractEventLoop) -> Iterator[Interrupter]:
    """An interrupter that SIGINT goes to."""
    before = signal.getsignal(signal.SIGINT)
    interrupter = Interrupter(loop)
    interrupter.install()
    yield interrupter
    signal.signal(signal.SIGINT, before)


def hit() -> None:
    signal.raise_signal(signal.SIGINT)


async def waiting_cell(interrupter: Interrupter) -> asyncio.Task[object]:
    """Return the task of a cell that waits."""
    task: asyncio.Task[object] = asyncio.create_task(asyncio.Event().wait())
    interrupter.watch(task)
    await asyncio.sleep(0)
    return task


def test_code_that_runs_is_hit_right_there(loop: asyncio.AbstractEventLoop, interrupter: Interrupter) -> None:
    async def cell() -> str:
        interrupter.watch(asyncio.current_task())
        try:
            hit()
        except KeyboardInterrupt:
            return "hit"
        return "missed"

    assert loop.run_until_complete(cell()) == "hit"
    assert interrupter.hits == 1


def test_code_that_awaits_is_cancelled_and_other_tasks_go_on(
    loop: asyncio.AbstractEventLoop, interrupter: Interrupter
) -> None:
    async def other() -> str:
        hit()
        await asyncio.sleep(0)
        return "went on"

    async def both() -> str:
        task = await waiting_cell(interrupter)
        said = await asyncio.create_task(other())
        with pytest.raises(asyncio.CancelledError):
            await task
        return said

    assert loop.run_until_complete(both()) == "went on"


def test_a_second_hit_raises_whoever_runs(loop: asyncio.AbstractEventLoop, interrupter: Interrupter) -> None:
    async def both() -> int:
        task = await waiting_cell(interrupter)
        hit()
        with pytest.raises(KeyboardInterrupt):
            hit()
        with pytest.raises(asyncio.CancelledError):
            await task
        return interrupter.hits

    assert loop.run_until_complete(both()) == 2


def test_a_hit_when_no_cell_runs_comes_too_late(loop: asyncio.AbstractEventLoop, interrupter: Interrupter) -> None:
    async def nothing() -> None:
        return

    hit()
    task = loop.create_task(nothing())
    interrupter.watch(task)
    loop.run_until_complete(task)
    hit()
    interrupter.watch(None)
    hit()
    assert interrupter.hits == 0


def test_hits_are_counted_for_each_cell(loop: asyncio.AbstractEventLoop, interrupter: Interrupter) -> None:
    async def cell() -> None:
        interrupter.watch(asyncio.current_task())
        with pytest.raises(KeyboardInterrupt):
            hit()

    for _ in range(2):
        loop.run_until_complete(cell())
        assert interrupter.hits == 1


def test_a_query_is_hit_although_no_cell_runs(interrupter: Interrupter) -> None:
    with pytest.raises(KeyboardInterrupt), interrupter.query():
        hit()
    hit()


def test_asyncio_run_works_within_a_loop_and_leaves_the_loop_as_it_was() -> None:
    run(
        """
        import asyncio, selectors
        from cellblock.worker.loop import allow_nested_run, new_loop
        documentation = asyncio.run.__doc__
        allow_nested_run()
        assert asyncio.run.__doc__ == documentation
        loop = new_loop()
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
        assert isinstance(loop._selector, selectors.PollSelector)

        async def inner():
            await asyncio.sleep(0)
            return asyncio.get_running_loop()

        async def fail():
            raise KeyError("x")

        async def outer():
            assert asyncio.run(inner()) is not loop
            try:
                asyncio.run(fail())
            except KeyError:
                pass
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0)
            return "done"

        assert loop.run_until_complete(outer()) == "done"
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
        assert asyncio.run(inner()) is not loop
        loop.close()
        """
    )


def test_a_loop_has_work_if_anything_happens_without_a_request(loop: asyncio.AbstractEventLoop) -> None:
    assert not has_work(loop, own=0)
    ready, timer = loop.call_soon(int), loop.call_later(60, int)
    assert has_work(loop, own=0)
    ready.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    assert has_work(loop, own=0)  # the timer
    timer.cancel()
    waiting = loop.create_task(asyncio.Event().wait())
    loop.run_until_complete(asyncio.sleep(0))
    assert not has_work(loop, own=0)  # nothing wakes the task up
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.add_reader(ours, int)
        assert has_work(loop, own=0)
        assert not has_work(loop, own=1)
        loop.remove_reader(ours)
    waiting.cancel()
    loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
