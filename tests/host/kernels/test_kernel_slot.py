"""One kernel after the other, without a real one: what an attempt to start one leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cellblock import LaunchError, StateError
from cellblock.host.kernels.exit_status import Death
from cellblock.host.kernels.kernel_slot import KernelObserver, KernelSlot
from processes import eventually


async def test_a_failure_that_nobody_waited_for_is_not_raised_to_a_later_cell() -> None:
    attempts = 0

    async def launch(_dead: object) -> Any:
        nonlocal attempts
        attempts += 1
        raise LaunchError(f"attempt {attempts}")

    slot = KernelSlot(launch)
    slot.current = _Dead()  # type: ignore[assignment]  # what has died is only asked whether it has
    slot.replace_dead()
    await eventually(lambda: attempts == 1)
    with pytest.raises(LaunchError, match="attempt 2"):
        await slot.live()


class _Memory:
    relief: object = None


class _Dead:
    death = Death("it was killed")
    memory = _Memory()

    def write_base(self) -> None:
        pass

    async def settle(self) -> None:
        pass

    def remember(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def forget(self) -> None:
        pass


class _Live(_Dead):
    death = None  # type: ignore[assignment]


async def test_callers_that_come_together_wait_for_one_start_and_a_cancelled_one_loses_nothing() -> None:
    launched: list[Any] = []

    async def launch(_dead: object) -> Any:
        launched.append(_Live())
        await asyncio.sleep(0)
        return launched[-1]

    slot = KernelSlot(launch)
    first, second, third = (asyncio.create_task(slot.live()) for _ in range(3))
    await eventually(lambda: launched)
    first.cancel()
    assert [await second, await third] == launched * 2
    assert slot.current is launched[0]


async def test_a_slot_that_is_closed_in_the_middle_of_a_swap_closes_both_kernels() -> None:
    ended: list[Any] = []

    class Kernel(_Live):
        async def step_aside(self, _ended: object) -> None:
            discarding.set()
            await asyncio.Event().wait()  # it takes its time, and is cancelled

        async def close(self) -> None:
            ended.append(self)

    discarding, old, new = asyncio.Event(), Kernel(), Kernel()

    async def prepare() -> Any:
        return new

    async def launch(_dead: object) -> Any:
        raise AssertionError

    slot = KernelSlot(launch)
    slot.adopt(old)  # type: ignore[arg-type]
    swapping = asyncio.create_task(slot.swap(prepare, lambda: None))
    await discarding.wait()
    await slot.close()
    assert ended == [old, new]
    with pytest.raises(StateError):
        await swapping


class _Leaving(_Live):
    """A kernel that takes its time to end, and of which nothing can be noticed meanwhile."""

    def __init__(self) -> None:
        self.aside = False
        self.may_end = asyncio.Event()

    async def step_aside(self, ended: Callable[[], object]) -> None:
        self.aside = True
        self.ended = ended

    async def close(self) -> None:
        await self.may_end.wait()


class _To:
    """A move to another kernel."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.prepared = False

    async def prepare(self) -> Any:
        self.prepared = True
        return self.kernel


def _nothing() -> None:
    """Handle a completed replacement."""


async def _no_launch(_dead: object) -> Any:
    raise AssertionError


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_kernel_that_still_ends_holds_up_the_next_exchange_and_no_cell() -> None:
    kernels: list[Any] = [_Leaving(), _Leaving(), _Leaving()]
    first, second, third = kernels
    slot = KernelSlot(_no_launch)
    slot.adopt(first)
    await slot.swap(_To(second).prepare, _nothing)
    assert first.aside
    assert await slot.live() is second
    move = _To(third)
    swapping = asyncio.create_task(slot.swap(move.prepare, _nothing))
    await _turns()
    assert not swapping.done()
    assert not move.prepared
    first.may_end.set()
    await swapping
    assert slot.current is third


async def test_a_kernel_that_still_ends_holds_up_a_fresh_one() -> None:
    kernels: list[Any] = [_Leaving(), _Leaving()]
    first, second = kernels
    launched: list[Any] = []

    async def launch(_dead: object) -> Any:
        launched.append(_Live())
        return launched[-1]

    slot = KernelSlot(launch)
    slot.adopt(first)
    await slot.swap(_To(second).prepare, _nothing)
    second.may_end.set()
    renewing = asyncio.create_task(slot.renew())
    await _turns()
    assert not launched
    first.may_end.set()
    await renewing
    assert [slot.current] == launched


async def test_a_kernel_that_has_ended_is_not_kept() -> None:
    first: Any = _Leaving()
    slot = KernelSlot(_no_launch)
    slot.adopt(first)
    second: Any = _Leaving()
    await slot.swap(_To(second).prepare, _nothing)
    ended = first.ended
    assert [slot._left] == [first]
    ended()
    assert [slot._left] == [None]


async def test_a_kernel_that_cannot_be_ended_does_not_keep_the_next_one_from_being_closed() -> None:
    class Stuck(_Leaving):
        async def close(self) -> None:
            raise OSError("it does not end")

    kernels: list[Any] = [Stuck(), _Leaving()]
    first, second = kernels
    slot = KernelSlot(_no_launch)
    slot.adopt(first)
    await slot.swap(_To(second).prepare, _nothing)
    second.may_end.set()
    closed = []
    close = second.close

    async def noted() -> None:
        closed.append(second)
        await close()

    second.close = noted
    with pytest.raises(OSError, match="does not end"):
        await slot.close()
    assert closed == [second]


async def test_a_slot_that_was_closed_starts_nothing() -> None:
    async def launch(_dead: object) -> Any:
        raise AssertionError

    slot = KernelSlot(launch)
    await slot.close()
    await slot.close()
    with pytest.raises(StateError, match="is closed"):
        await slot.live()


class _Observer(KernelObserver):
    """An observer that can end programs, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def code_stopped(self) -> None:
        self.told.append("stopped")

    def end_programs(self, why: str) -> bool:
        self.told.append(why)
        return True


async def test_observers_free_memory_and_all_learn_of_stopped_code() -> None:
    slot, observers = KernelSlot(_no_launch), [_Observer(), _Observer()]
    assert not slot.end_programs("nobody observes")
    slot.observe(KernelObserver())
    for observer in observers:
        slot.observe(observer)
    slot.adopt(kernel := _Live())  # type: ignore[arg-type]
    assert kernel.memory.relief is slot
    slot.code_stopped()
    assert (slot.relieve(), slot.end_programs("out of memory")) == (False, True)
    assert [observer.told for observer in observers] == [["stopped", "out of memory"], ["stopped"]]
