"""One kernel after the other, without a real one: what an attempt to start one leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

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

    slot = KernelSlot(_no_launch)
    slot.adopt(old)  # type: ignore[arg-type]
    swapping = asyncio.create_task(_exchange(slot, new))
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


async def _exchange(slot: KernelSlot, kernel: Any, prepared: list[Any] | None = None) -> None:
    """Replace the kernel of a slot; note it in a list when it is prepared."""

    async def prepare() -> Any:
        if prepared is not None:
            prepared.append(kernel)
        return kernel

    await slot.swap(prepare, lambda: None)


async def _no_launch(_dead: object) -> Any:
    raise AssertionError


async def _leaving() -> tuple[KernelSlot, Any, Any]:
    """Return a slot whose kernel has been replaced and takes its time to end, and both kernels."""
    slot, first, second = KernelSlot(_no_launch), _Leaving(), _Leaving()
    slot.adopt(first)  # type: ignore[arg-type]
    await _exchange(slot, second)
    return slot, first, second


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_kernel_that_still_ends_holds_up_the_next_exchange_and_no_cell() -> None:
    slot, first, second = await _leaving()
    assert first.aside
    assert await slot.live() is second
    third, prepared = _Leaving(), list[Any]()
    swapping = asyncio.create_task(_exchange(slot, third, prepared))
    await _turns()
    assert not swapping.done()
    assert not prepared
    first.may_end.set()
    await swapping
    assert prepared == [third]
    assert slot.current is cast(Any, third)


async def test_a_kernel_that_still_ends_holds_up_a_fresh_one() -> None:
    launched: list[Any] = []

    async def launch(_dead: object) -> Any:
        launched.append(_Live())
        return launched[-1]

    slot, first, second = await _leaving()
    slot._launch = launch
    second.may_end.set()
    renewing = asyncio.create_task(slot.renew())
    await _turns()
    assert not launched
    first.may_end.set()
    await renewing
    assert [slot.current] == launched


async def test_a_kernel_that_has_ended_is_not_kept() -> None:
    slot, first, _ = await _leaving()
    assert [slot._left] == [first]
    first.ended()
    assert [slot._left] == [None]


async def test_a_kernel_that_cannot_be_ended_does_not_keep_the_next_one_from_being_closed() -> None:
    async def fail() -> None:
        raise OSError("it does not end")

    async def close() -> None:
        closed.append(second)

    closed: list[Any] = []
    slot, first, second = await _leaving()
    first.close, second.close = fail, close
    with pytest.raises(OSError, match="does not end"):
        await slot.close()
    assert closed == [second]


async def test_a_slot_that_was_closed_starts_nothing() -> None:
    slot = KernelSlot(_no_launch)
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
