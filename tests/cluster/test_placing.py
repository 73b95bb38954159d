"""Places are asked for many at a time, and whoever has to wait for one holds up nobody."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cellblock.cluster.placing import Placing
from cellblock.errors import DaemonError


class Asked:
    """A director: names that begin with `late` have to wait for room."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.room = asyncio.Event()
        self.fails = False

    async def asked(self, what: str, *arguments: Any) -> Any:
        if what == "place":
            await self.room.wait()
            return {"mark": f"late for {arguments[3]}"}
        self.calls.append([name for name, _, _ in arguments[0]])
        await self.goes_on.wait()
        if self.fails:
            raise DaemonError("it has ended")
        return [None if name.startswith("late") else {"mark": name} for name, _, _ in arguments[0]]


async def test_what_is_asked_for_during_a_call_goes_into_the_next_one() -> None:
    director = Asked()
    director.goes_on.clear()
    placing = Placing(cast(Any, director))
    first = asyncio.create_task(placing.place("first", 0, [], 1.0))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(placing.place(f"{number}", 0, ["numpy"], 1.0)) for number in range(250)]
    await asyncio.sleep(0)
    director.goes_on.set()
    assert await first == {"mark": "first"}
    assert [one["mark"] for one in await asyncio.gather(*others)] == [f"{number}" for number in range(250)]
    assert [len(names) for names in director.calls] == [1, 100, 100, 50]


async def test_who_has_to_wait_holds_up_nobody() -> None:
    director = Asked()
    placing = Placing(cast(Any, director))
    late = asyncio.create_task(placing.place("late", 0, [], 2.5))
    assert await placing.place("soon", 0, [], 1.0) == {"mark": "soon"}
    director.room.set()
    assert await late == {"mark": "late for 2.5"}


async def test_who_gives_up_takes_nobody_along() -> None:
    director = Asked()
    director.goes_on.clear()
    placing = Placing(cast(Any, director))
    tasks = [asyncio.create_task(placing.place(f"{number}", 0, [], 1.0)) for number in range(3)]
    await asyncio.sleep(0.01)
    tasks[1].cancel()
    director.goes_on.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [results[0], results[2]] == [{"mark": "0"}, {"mark": "2"}]
    assert isinstance(results[1], asyncio.CancelledError)


async def test_an_error_reaches_all_of_a_call_and_the_next_one_is_made() -> None:
    director = Asked()
    director.fails = True
    placing = Placing(cast(Any, director))
    results = await asyncio.gather(*(placing.place(f"{number}", 0, [], 1.0) for number in range(3)), return_exceptions=True)
    assert all(isinstance(one, DaemonError) for one in results)
    director.fails = False
    assert await placing.place("again", 0, [], 1.0) == {"mark": "again"}


async def test_closing_ends_what_is_asked_for() -> None:
    director = Asked()
    director.goes_on.clear()
    placing = Placing(cast(Any, director))
    task = asyncio.create_task(placing.place("one", 0, [], 1.0))
    await asyncio.sleep(0.01)
    await placing.close()
    await placing.close()
    with pytest.raises(DaemonError, match="closed"):
        await task
