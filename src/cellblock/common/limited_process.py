"""Runs a program of this package on untrusted data in a separate process, because it may use much time or memory."""

from __future__ import annotations

import asyncio
import sys

_at_once = asyncio.Semaphore(2)


async def run(program: str, data: bytes, seconds: float) -> bytes | None:
    """Run a program that limits its own memory and CPU time, without site packages and environment.

    Args:
        program: The path of the program.
        data: Its standard input.
        seconds: Time limit in seconds, including waits.

    Returns:
        Its standard output; None if it failed, or exceeded a limit.
    """
    async with _at_once:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", program),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            cwd="/",
        )
        try:
            async with asyncio.timeout(seconds):
                said, _ = await process.communicate(data)
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
    return said if process.returncode == 0 else None
