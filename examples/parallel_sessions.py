"""Many sessions at once, each with variables of its own, all forked from one warm process."""

import asyncio
import time

from cellblock import CodeExecutor, Host

SESSIONS = 50


async def square(host: Host, number: int) -> int:
    """Compute something in a session of its own."""
    async with CodeExecutor(host=host) as executor:
        await executor.execute(f"x = {number}")
        return int((await executor.execute("x ** 2")).return_value or 0)


async def main() -> None:
    """Start them all, and add up what they say."""
    async with Host() as host:
        began = time.perf_counter()
        squares = await asyncio.gather(*(square(host, number) for number in range(SESSIONS)))
        took = time.perf_counter() - began
    print(f"{SESSIONS} sessions, {2 * SESSIONS} cells, {1000 * took:.0f} ms; the sum is {sum(squares):,}")


asyncio.run(main())
