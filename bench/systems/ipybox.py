"""ipybox, through its `CodeExecutor`."""

from __future__ import annotations

from ipybox import CodeExecutionChunk, CodeExecutor  # type: ignore[import-not-found]  # in the peers' environment only

from bench.systems import Kernel, System
from bench.systems.executor import ExecutorKernel, program


class _Ipybox(System):
    blocking = False
    cold = program("ipybox")
    module = "ipybox"

    async def kernel(self, isolate: str = "none") -> Kernel:
        executor = CodeExecutor(kernel_init_timeout=60)
        await executor.start()
        return ExecutorKernel(executor, CodeExecutionChunk)


SYSTEM = _Ipybox()
