"""cellblock, through `CodeExecutor` on a host that is warm."""

from __future__ import annotations

from cellblock import CodeExecutionChunk, CodeExecutor, ExecutionTimeoutError, Host

_COLD = """
import asyncio
from cellblock import CodeExecutor
async def main():
    async with CodeExecutor() as executor:
        print((await executor.execute("6 * 7")).text)
asyncio.run(main())
"""


class _Kernel:
    def __init__(self, executor: CodeExecutor) -> None:
        self._executor = executor

    async def execute(self, code: str, timeout: float | None = 120) -> str:
        try:
            return (await self._executor.execute(code, timeout)).text or ""
        except ExecutionTimeoutError as error:
            return (error.result.text if error.result else None) or ""

    async def stream(self, code: str) -> int:
        count = 0
        async for event in self._executor.stream(code, chunks=True):
            if isinstance(event, CodeExecutionChunk):
                count += len(event.text)
        return count

    async def close(self) -> None:
        await self._executor.stop()


class _Cellblock:
    blocking = False
    cold = _COLD
    module = "cellblock"

    def __init__(self) -> None:
        self._host: Host | None = None

    async def open(self, preload: tuple[str, ...] = ()) -> None:
        self._host = Host(preload=preload, isolate="none")
        await self._host.start()

    async def kernel(self) -> _Kernel:
        executor = CodeExecutor(host=self._host)
        await executor.start()
        return _Kernel(executor)

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close()


SYSTEM = _Cellblock()
