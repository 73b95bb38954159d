"""Callbacks for the output of a cell as it arrives, for `CodeExecutor.execute`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cellblock.host.kernels.cell import Notice
from cellblock.model import CodeExecutionChunk, CodeExecutionResult, OutputItem

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.host.kernels.cell import OnInput

OnText: TypeAlias = Callable[[str], Awaitable[object] | object]
OnResult: TypeAlias = Callable[[OutputItem], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class Listeners:
    """The callbacks for a cell's output.

    Attributes:
        stdout: Called with text written to stdout.
        stderr: Called with text written to stderr.
        result: Called with displayed values, and the value of the last expression.
        refuse: Refuses requests of the code; None to allow them.
    """

    stdout: OnText | None
    stderr: OnText | None
    result: OnResult | None
    refuse: Callable[[object], None] | None

    async def run(
        self, session: Session, code: str, *, timeout: float | None, on_input: OnInput | None
    ) -> CodeExecutionResult:
        """Run code in a session; return its result when the callbacks have handled all output.

        Raises:
            CellblockError: As `Session.stream`.
            Exception: Any exception of a callback; the code is stopped then.
        """
        result: CodeExecutionResult | None = None
        async with aclosing(session.stream(code, timeout=timeout, on_input=on_input, rich=True)) as events:
            async for event in events:
                match event:
                    case CodeExecutionResult():
                        result = event
                    case CodeExecutionChunk(name="stderr"):
                        await _tell(self.stderr, event.text)
                    case CodeExecutionChunk():
                        await _tell(self.stdout, event.text)
                    case OutputItem(kind="display_data" | "update_display_data" | "execute_result"):
                        await _tell(self.result, event)
                    case Notice(about=asked):
                        await self._decide(asked)
        assert result is not None  # a stream ends with a result, or raises
        return result

    async def _decide(self, asked: object) -> None:
        from cellblock.tools.approvals.request import ApprovalRequest

        assert isinstance(asked, ApprovalRequest)
        if self.refuse is None:
            await asked.accept()
        else:
            self.refuse(asked)


async def _tell(listener: Callable[..., Awaitable[object] | object] | None, what: object) -> None:
    if listener is not None and inspect.isawaitable(waiting := listener(what)):
        await waiting
