"""One kernel after the other, without a real one: what an attempt to start one leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cellblock import LaunchError, StateError
from cellblock.host.kernels.exit_status import Death
from cellblock.host.kernels.kernel_slot import KernelSlot
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
    relieve = None
    end_programs = None


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
        async def step_aside(self) -> None:
            discarding.set()
            await asyncio.Event().wait()  # it takes its time, and is cancelled

        async def close(self) -> None:
            ended.append(self)

    discarding, old, new = asyncio.Event(), Kernel(), Kernel()

    class Move:
        async def prepare(self) -> Any:
            return new

        def commit(self) -> None:
            pass

    async def launch(_dead: object) -> Any:
        raise AssertionError

    slot = KernelSlot(launch)
    slot.adopt(old)  # type: ignore[arg-type]
    swapping = asyncio.create_task(slot.swap(Move()))
    await discarding.wait()
    await slot.close()
    assert ended == [old, new]
    with pytest.raises(StateError):
        await swapping


async def test_a_kernel_that_still_ends_holds_up_the_next_exchange_and_no_cell() -> None:
    class Kernel(_Live):
        def __init__(self) -> None:
            self.aside = False
            self.ended = asyncio.Event()

        async def settle(self) -> None:
            assert not self.aside

        async def step_aside(self) -> None:
            self.aside = True

        async def close(self) -> None:
            await self.ended.wait()

    kernels: list[Any] = [Kernel(), Kernel(), Kernel()]
    first, second, third = kernels

    class Move:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        async def prepare(self) -> Any:
            assert not first.aside or first.ended.is_set()
            return self.kernel

        def commit(self) -> None:
            pass

    async def launch(_dead: object) -> Any:
        raise AssertionError

    slot = KernelSlot(launch)
    slot.adopt(first)
    await slot.swap(Move(second))
    assert first.aside
    assert await slot.live() is second
    swapping = asyncio.create_task(slot.swap(Move(third)))
    await asyncio.sleep(0)
    first.ended.set()
    await swapping
    assert slot.current is third


async def test_a_slot_that_was_closed_starts_nothing() -> None:
    async def launch(_dead: object) -> Any:
        raise AssertionError

    slot = KernelSlot(launch)
    await slot.close()
    await slot.close()
    with pytest.raises(StateError, match="is closed"):
        await slot.live()
