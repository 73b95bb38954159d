"""Output as it happens: each chunk is shown when the code prints it, and the result has all of it again."""

import asyncio

from cellblock import CodeExecutionChunk, CodeExecutionResult, CodeExecutor, printable

CODE = """
import time

for number in range(1, 6):
    print(f"{number} of 5")
    time.sleep(0.2)
"""


async def main() -> None:
    """Stream one cell."""
    async with CodeExecutor() as executor:
        async for item in executor.stream(CODE, chunks=True):
            match item:
                case CodeExecutionChunk(text=text):
                    print(printable(text), end="", flush=True)  # a terminal would obey what is in it
                case CodeExecutionResult() as result:
                    print(f"{result.status} after {result.duration_ms} ms, {len(result.output.splitlines())} lines")


asyncio.run(main())
