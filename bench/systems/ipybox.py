"""ipybox, through its `CodeExecutor`. It knows nothing of preloading."""

from __future__ import annotations

from ipybox import CodeExecutionChunk, CodeExecutor  # type: ignore[import-not-found]  # in the peers' environment only

_COLD = """
import asyncio
from ipybox import CodeExecutor
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
            return (await self._executor.execute(code, timeout=timeout)).text or ""
        except TimeoutError:
            return ""

    async def stream(self, code: str) -> int:
        count = 0
        async for event in self._executor.stream(code, chunks=True):
            if isinstance(event, CodeExecutionChunk):
                count += len(event.text)
        return count

    async def close(self) -> None:
        await self._executor.stop()


class _Ipybox:
    blocking = False
    cold = _COLD
    module = "ipybox"

    async def open(self, preload: tuple[str, ...] = ()) -> None:
        pass

    async def kernel(self) -> _Kernel:
        executor = CodeExecutor(kernel_init_timeout=60)
        await executor.start()
        return _Kernel(executor)

    async def close(self) -> None:
        pass


SYSTEM = _Ipybox()
