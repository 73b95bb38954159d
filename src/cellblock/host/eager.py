"""Runs code while a model is still writing it: each complete statement at once, all within one cell.

If the text changes or is withdrawn, the executed part is undone, so only sessions with exact undo run ahead. In other
sessions, the code waits for the complete text. Tool calls and connections always wait for it.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cellblock.common.tasks import despite_cancellation
from cellblock.errors import InvalidInputError, StateError
from cellblock.host.closing import AsyncOnly
from cellblock.host.kernels.cell import Cell, Prompt, check_code

if TYPE_CHECKING:
    from cellblock.host.holding import Holding
    from cellblock.host.kernels.cell import OnInput
    from cellblock.host.kernels.cells import Cells
    from cellblock.model import CodeExecutionResult

_CODE = "await __import__('cellblock.worker.eager', fromlist=['run']).run()"
_LONGEST = 8 * 1024
"""Characters of a statement. A longer one, and what follows, waits for the end of the text: looking for its end takes time."""
_TRIES = 4
"""Lines at which the end of a statement is looked for, from the last on: each takes the time of parsing the text before it."""
_MAX_PARSED = 64 * 1024
"""Characters of a whole text that is parsed here. A longer one is run as a whole."""
_MOMENT = 0.05  # seconds between attempts to stop a cell that is just beginning
_WORD = re.compile(r"[A-Za-z_]\w*")
_GOES_ON = frozenset(("else", "elif", "except", "finally"))
"""Words at the beginning of a line that continue the statement before."""
_AHEAD = re.compile(r"[ \t]*(#.*)?$")
"""A line that neither begins a statement nor ends one."""


def ready(text: str) -> int:
    """Return the length of the prefix that consists of complete statements, for every continuation.

    The last statement is excluded, because it may continue until another one begins.

    Args:
        text: The text so far, from the beginning of a statement.
    """
    lines = text.splitlines(keepends=True)
    position, tries = len(text), 0
    for line in reversed(lines):
        position -= len(line)
        if position == 0:
            return 0
        if not _begins_statement(line):
            continue
        if tries == _TRIES:
            return 0
        tries += 1
        try:
            ast.parse(text[:position])
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        return position
    return 0


def _begins_statement(line: str) -> bool:
    """Return whether a partial line certainly begins another statement."""
    if not line or line[0] in " \t\r\n\f#)]}" or _AHEAD.fullmatch(line.rstrip("\r\n")):
        return False
    word = _WORD.match(line)
    if word is None:
        return True
    if word.end() == len(line):  # the word may be incomplete
        return not any(name.startswith(word[0]) for name in _GOES_ON)
    return word[0] not in _GOES_ON


def parses(text: str) -> bool:
    """Return whether a text is plain Python as far as it is parsed here: no magics, commands, fences, or errors."""
    if len(text) > _MAX_PARSED:
        return False
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


class Eager(AsyncOnly):
    """One cell whose text is still being written, from `Session.eager`.

    An async context manager::

        async with session.eager() as eager:
            async for part in model:
                eager.feed(part)
            result = await eager.finish()

    Leaving the block without `finish` undoes the cell.
    """

    def __init__(
        self,
        cells: Cells,
        holding: Holding,
        undo: Callable[[], Awaitable[object]],
        execute: Callable[[str, float | None], Awaitable[CodeExecutionResult]],
        *,
        ahead: bool,
        timeout: float | None,
        on_input: OnInput | None,
    ) -> None:
        """Store the arguments. Nothing runs before the first complete statement.

        Args:
            cells: Runs the cell.
            holding: Blocks tool calls and connections until the text is complete.
            undo: Undoes the last cell.
            execute: Runs a complete text.
            ahead: Whether statements run before the text is complete, because the session can undo them.
            timeout: Time limit in seconds after the text is complete.
            on_input: Answers `input()`.
        """
        self._cells = cells
        self._holding = holding
        self._undo = undo
        self._execute = execute
        self._ahead = ahead
        self._timeout = timeout
        self._on_input = on_input
        self._text = ""
        self._sent = 0
        """How many characters the cell has been given, or is about to be."""
        self._pieces: asyncio.Queue[str] = asyncio.Queue()
        self._cell: Cell | None = None
        self._running: asyncio.Task[CodeExecutionResult] | None = None
        self._finished = False
        self._begun = False

    async def __aenter__(self) -> Self:
        self._cells.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            self._finished = True
            await despite_cancellation(asyncio.create_task(self._withdraw()))

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text

    @property
    def ran(self) -> str:
        """The executed part of the text."""
        return self._text[: self._sent]

    def feed(self, part: str) -> None:
        """Add text from the model. Complete statements start to run.

        Raises:
            InvalidInputError: The text is not a string, or cannot be code.
            StateError: `finish` was already called.
        """
        if not isinstance(part, str):
            raise InvalidInputError(f"part must be a string, not {type(part).__name__}")
        if self._finished:
            raise StateError("this cell is finished already: make another one with session.eager()")
        self._text += part
        if "\n" in part or "\n" in self._text[self._sent :]:
            self._run_ahead()

    async def replace(self, text: str) -> None:
        """Replace the whole text, because the model started again.

        Undo the executed part unless the new text begins with it.
        """
        if self._finished:
            raise StateError("this cell is finished already: make another one with session.eager()")
        check_code(text)
        if not text.startswith(self.ran):
            await self._withdraw()
        self._text = text
        self._run_ahead()

    async def finish(self) -> CodeExecutionResult:
        """Run the rest and return the cell's result, like `Session.execute` for the whole text.

        Raises:
            InvalidInputError, StateError, LaunchError: As for `Session.execute`.
        """
        if self._finished:
            raise StateError("this cell is finished already: make another one with session.eager()")
        check_code(self._text)
        self._finished = True
        if self._running is None or self._cell is None or not parses(self._text):
            # Nothing has run. Or the text has a magic or an error, so that it is only meaningful as a whole.
            await despite_cancellation(asyncio.create_task(self._withdraw()))
            return await self._execute(self._text, self._timeout)
        self._cell.code = self._text
        self._holding.release()
        self._pieces.put_nowait(_piece(self._text[self._sent :], last=True))
        self._sent = len(self._text)
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.shield(self._running)
        except TimeoutError:
            self._cells.time_out(self._cell)
            return await self._running
        except asyncio.CancelledError:
            self._running.cancel()
            await despite_cancellation(self._running)
            raise

    def _run_ahead(self) -> None:
        if not self._ahead or len(self._text) - self._sent > _LONGEST or (self._sent == 0 and self._text[:1] in " \t`%!?"):
            return
        if self._running is not None and self._running.done():
            return  # it failed: what follows does not run, unless the text is replaced
        if not (count := ready(self._text[self._sent :])):
            return
        piece = self._text[self._sent : self._sent + count]
        self._sent += count
        self._pieces.put_nowait(_piece(piece, last=False))
        if self._running is None:
            self._holding.hold()
            self._begun = False
            self._cell = Cell(_CODE, self._next, queue_limit=None, on_begin=self._note_begin)
            self._running = asyncio.create_task(self._cells.run(self._cell, None))
            self._running.add_done_callback(_mark)

    async def _next(self, prompt: Prompt) -> str | None:
        """Answer the cell that runs the pieces, or `input()` of the code."""
        if not prompt.password or prompt:
            if self._on_input is None:
                return None
            answer = self._on_input(prompt)
            return await answer if isinstance(answer, Awaitable) else answer
        assert self._cell is not None
        if self._cell.not_undoable and not self._finished:
            await asyncio.Event().wait()  # the undo failed: wait for `finish`, which starts again
        return await self._pieces.get()

    def _note_begin(self, position: str) -> None:
        self._begun = self._begun or bool(position)

    async def _withdraw(self) -> None:
        """Undo the cell, if any of it has run."""
        cell, running = self._cell, self._running
        self._cell = self._running = None
        self._sent, self._pieces = 0, asyncio.Queue()
        self._holding.refuse()
        if running is None or cell is None:
            return
        cell.code = self._text
        if not self._begun:
            running.cancel()
        while not running.done():
            # Stopped, not cancelled: a cancelled cell has no result and is not undone.
            if self._cells.current is cell:
                await self._cells.stop()
            await asyncio.wait([running], timeout=_MOMENT)
        if self._begun:
            await self._undo()


def _piece(code: str, *, last: bool) -> str:
    return json.dumps({"code": code, "last": last})


def _mark(task: asyncio.Task[CodeExecutionResult]) -> None:
    if not task.cancelled():
        task.exception()  # mark as retrieved: the caller may never ask
