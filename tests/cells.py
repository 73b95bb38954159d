"""Running cells in tests, and saying what came of them when that is not what was expected."""

from __future__ import annotations

import ast
import asyncio
from typing import Any

from cellblock import CodeExecutionResult, Session


async def ok(session: Session, code: str, **options: Any) -> CodeExecutionResult:
    """Run a cell that must succeed."""
    result = await session.execute(code, **options)
    assert result.status == "success", result.text
    return result


async def value(session: Session, code: str, **options: Any) -> Any:
    """Run a cell that must succeed, and return what its last expression evaluates to (a literal)."""
    result = await ok(session, code, **options)
    assert result.return_value is not None, result.text
    return ast.literal_eval(result.return_value)


async def running(session: Session, code: str) -> asyncio.Task[CodeExecutionResult]:
    """Begin a cell, and return the task that waits for its result as soon as the first that it prints is heard."""
    heard = asyncio.Event()

    async def run() -> CodeExecutionResult:
        try:
            async for event in session.stream(code):
                heard.set()
                if isinstance(event, CodeExecutionResult):
                    return event
        finally:
            heard.set()  # whatever went wrong is for whoever waits for the task
        raise AssertionError("the stream ended without a result")

    task = asyncio.create_task(run())
    await asyncio.wait_for(heard.wait(), 30)
    return task
