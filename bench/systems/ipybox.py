"""ipybox, through its `CodeExecutor`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipybox import (  # type: ignore[import-not-found]  # in the peers' environment only
    CodeExecutionChunk,
    CodeExecutor,
    generate_mcp_sources,
)

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

    async def generate(self, name: str, params: Mapping[str, Any], root: Path, *, awaited: bool = False) -> None:
        await generate_mcp_sources(name, dict(params), root, async_api=awaited)


SYSTEM = _Ipybox()
