"""Runs a program of this package on untrusted data, in a process of its own: it may take long, or much memory."""

from __future__ import annotations

import asyncio
import sys

_at_once = asyncio.Semaphore(2)


async def run(program: str, data: bytes, seconds: float) -> bytes | None:
    """Run a program that sets its own limits of memory and processor time, without site packages and environment.

    Args:
        program: The path of the program.
        data: Its standard input.
        seconds: Seconds for which it may run, whatever it waits for.

    Returns:
        What it has written to its standard output; None if it failed, or was over a limit.
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
