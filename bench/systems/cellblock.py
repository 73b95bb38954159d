"""cellblock, through `CodeExecutor` on a host that is warm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.systems import Kernel, System
from bench.systems.executor import ExecutorKernel, program
from cellblock import CodeExecutionChunk, CodeExecutor, Host, generate_mcp_sources


class _Cellblock(System):
    blocking = False
    cold = program("cellblock")
    module = "cellblock"

    def __init__(self) -> None:
        self._host: Host | None = None

    async def open(self, preload: tuple[str, ...] = ()) -> None:
        self._host = Host(preload=preload, isolate="none")
        await self._host.start()

    async def kernel(self, isolate: str = "none") -> Kernel:
        sandbox: dict[str, Any] = {"sandbox": False} if isolate == "none" else {"sandbox": True, "isolate": isolate}
        executor = CodeExecutor(host=self._host, recovery="rolling", **sandbox)
        await executor.start()
        return ExecutorKernel(executor, CodeExecutionChunk)

    async def generate(self, name: str, params: Mapping[str, Any], root: Path, *, awaited: bool = False) -> None:
        await generate_mcp_sources(name, params, root)

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close()


SYSTEM = _Cellblock()
