"""Programs beside the kernel: one after the other, beside the system's own way to start one, and in many sessions at once."""

from __future__ import annotations

import asyncio
import subprocess
import time
from contextlib import AsyncExitStack
from typing import Any

from bench import memory
from bench.cases import Series, ms
from bench.systems import System
from cellblock import Host, Session

_TRUE = ["/bin/true"]


async def programs(_system: System, *, n: int, isolate: Any, sessions: int, each: int) -> Series:
    """Run ``/bin/true`` in a session, in turns with `subprocess.run` outside it, and then in many sessions at once.

    Args:
        n: Programs one after the other.
        isolate: What the sessions run in.
        sessions: How many sessions run programs at once.
        each: Programs of each of them, one after the other.
    """
    series: Series = {"exec": [], "subprocess": []}
    async with Host(isolate=isolate) as host, AsyncExitStack() as stack:
        session = await stack.enter_async_context(host.session())
        await _several(session, 20)
        for _ in range(n):
            began = time.perf_counter()
            await session.exec(_TRUE)
            series["exec"].append(ms(began))
            began = time.perf_counter()
            subprocess.run(_TRUE, check=True)
            series["subprocess"].append(ms(began))
        many = [await stack.enter_async_context(host.session()) for _ in range(sessions)]
        await asyncio.gather(*(_several(one, 3) for one in many))
        before = memory.spent(memory.own())
        began = time.perf_counter()
        await asyncio.gather(*(_several(one, each) for one in many))
        seconds = time.perf_counter() - began
        faults, used = (after - earlier for after, earlier in zip(memory.spent(memory.own()), before, strict=True))
    count = sessions * each
    return {**series, "per second": [count / seconds], "faults": [faults / count], "CPU": [1000 * used / count]}


async def _several(session: Session, count: int) -> None:
    for _ in range(count):
        result = await session.exec(_TRUE)
        assert result.ok, result
