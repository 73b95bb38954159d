"""What cellblock and ipybox have in common: a `CodeExecutor` that is used in the same way."""

from __future__ import annotations

from typing import Any

_COLD = """
import asyncio
from {module} import CodeExecutor
async def main():
    async with CodeExecutor(sandbox=False) as executor:
        print((await executor.execute("6 * 7")).text)
asyncio.run(main())
"""


def program(module: str) -> str:
    """Return a program that imports one of them, runs one cell and exits."""
    return _COLD.format(module=module)


class ExecutorKernel:
    """A kernel behind a started executor."""

    def __init__(self, executor: Any, chunk: type[Any]) -> None:
        self._executor = executor
        self._chunk = chunk

    async def execute(self, code: str, timeout: float | None = 120) -> str:
        try:
            return (await self._executor.execute(code, timeout=timeout)).text or ""
        except TimeoutError as error:
            result = getattr(error, "result", None)  # ipybox keeps nothing
            return (result.text if result else None) or ""

    async def stream(self, code: str) -> int:
        count = 0
        async for event in self._executor.stream(code, chunks=True):
            if isinstance(event, self._chunk):
                count += len(event.text)
        return count

    async def close(self) -> None:
        await self._executor.stop()
