"""One text of a result for a model."""

from __future__ import annotations

import asyncio

from cellblock import CodeExecutionResult
from cellblock.model import ErrorInfo, OutputItem


async def case_for_model() -> None:
    """Output and a traceback that are as long as they may be, and nearly alike."""
    await asyncio.sleep(0)
    error = ErrorInfo("E", "a" * 260_000, ["a" * 260_000] * 4)
    shown = OutputItem("error", "b" + "\n".join(error.traceback))
    text = "a" * 2_000_000 + "b"
    CodeExecutionResult(text=text, outputs=[shown], error=error, status="error").for_model(500_000)
    await asyncio.sleep(0)


async def case_for_model_of_escape_sequences() -> None:
    """All of it the beginnings of escape sequences."""
    await asyncio.sleep(0)
    for begun in ("\x1b]", "\x1b[", "\x1b", "\x1b]0;"):
        CodeExecutionResult(text=begun * (2_000_000 // len(begun))).for_model(500_000)
    await asyncio.sleep(0)
