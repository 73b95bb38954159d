"""One close for all who ask for it, whatever becomes of those who wait."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.host.closing import Closing


class Owner:
    """Something to close, which can fail."""

    def __init__(self) -> None:
        self.closing = Closing()
        self.attempts = self.closed = 0
        self.go = asyncio.Event()
        self.fails = False

    async def close(self) -> None:
        await self.closing.finish(self._close)

    async def _close(self) -> None:
        self.attempts += 1
        await self.go.wait()
        if self.fails:
            raise OSError("it cannot be closed")
        self.closed += 1


async def test_all_callers_wait_for_one_close() -> None:
    owner = Owner()
    begun = [owner.closing.begun]
    callers = [asyncio.create_task(owner.close()) for _ in range(3)]
    await asyncio.sleep(0)
    begun.append(owner.closing.begun)
    assert begun == [False, True]
    assert not any(caller.done() for caller in callers)
    owner.go.set()
    await asyncio.gather(*callers)
    await owner.close()
    assert (owner.attempts, owner.closed) == (1, 1)


async def test_cancelling_a_caller_does_not_stop_it() -> None:
    owner = Owner()
    caller = asyncio.create_task(owner.close())
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    owner.go.set()
    await owner.close()
    assert (owner.attempts, owner.closed) == (1, 1)


async def test_a_close_that_failed_is_tried_again() -> None:
    owner = Owner()
    owner.go.set()
    owner.fails = True
    for _ in range(2):
        with pytest.raises(OSError, match="cannot be closed"):
            await owner.close()
    owner.fails = False
    await owner.close()
    assert (owner.attempts, owner.closed) == (3, 1)


def test_a_close_that_its_loop_took_with_it_is_tried_again_in_the_next() -> None:
    owner = Owner()

    async def begin() -> None:
        task = asyncio.create_task(owner.close())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(begin())
    assert owner.closed == 0
    owner.go = asyncio.Event()
    owner.go.set()
    asyncio.run(owner.close())
    assert owner.closed == 1
