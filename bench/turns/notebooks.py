"""One text of a result for a model."""

from __future__ import annotations

import asyncio

import cellblock.model.report  # noqa: F401  # not while it is measured
from cellblock import CodeExecutionResult
from cellblock.model import ErrorInfo, OutputItem

_ERROR = ErrorInfo("E", "a" * 260_000, ["a" * 260_000] * 4)
_NEARLY = OutputItem("error", "b" + "\n".join(_ERROR.traceback))
_ALIKE = CodeExecutionResult(text="a" * 2_000_000 + "b", outputs=[_NEARLY], error=_ERROR, status="error")
_BEGUN = [CodeExecutionResult(text=start * (2_000_000 // len(start))) for start in ("\x1b]", "\x1b[", "\x1b", "\x1b]0;")]


async def case_for_model() -> None:
    """Output and a traceback that are as long as they may be, and nearly alike."""
    await asyncio.sleep(0)
    _ALIKE.for_model(500_000)
    await asyncio.sleep(0)


async def case_for_model_of_escape_sequences() -> None:
    """All of it the beginnings of escape sequences."""
    for result in _BEGUN:
        await asyncio.sleep(0)
        result.for_model(500_000)
        await asyncio.sleep(0)
