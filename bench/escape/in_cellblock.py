"""Runs a program as a cell in one or more sessions of one host: TIER SESSIONS WORKSPACE PROGRAM."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import replace

from cellblock import CodeExecutor, Host, Policy
from cellblock.walls.sandbox.policy import Network


async def main(tier: str, sessions: str, workspace: str, program: str) -> None:
    """Run it, and print what the cells print."""
    policy = Policy() if tier == "landlock" else replace(Policy(), network=Network(allow=("*.allowed.test",)))
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(Host(isolate=tier, policy=policy))  # type: ignore[arg-type]  # from the command
        for _ in range(int(sessions)):
            executor = await stack.enter_async_context(CodeExecutor(host=host, working_dir=workspace))
            print((await executor.execute(program, timeout=30, check=False)).text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
