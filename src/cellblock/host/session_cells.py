"""The methods of `Session` that run cells; it inherits them."""

from __future__ import annotations

import asyncio
import functools
import logging
import shlex
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from cellblock.errors import StateError
from cellblock.host.checks import DEFAULT_TIMEOUT, check_code, check_requirements, check_timeout, without_fence
from cellblock.host.kernels.cell import Cell, OnInput
from cellblock.host.kernels.cell_events import Event, Notice
from cellblock.host.kernels.cells import Cells
from cellblock.host.kernels.kernel_slot import KernelSlot
from cellblock.host.kernels.stopping import despite_cancellation
from cellblock.host.launch.kernel_spec import KernelSpec
from cellblock.model import CodeExecutionResult

_log = logging.getLogger("cellblock.sessions")

_BYTE_ORDER_MARK = "\ufeff"
"""Editors write it at the beginning of files, where Python accepts it; in a string it is a syntax error."""


class WithCells:
    """The methods of a session that run cells.

    Attributes:
        wanted: The specification of its kernels.
    """

    wanted: KernelSpec
    _name: str
    _cells: Cells
    _kernels: KernelSlot
    _resumed: tuple[Cell, asyncio.Task[CodeExecutionResult]] | None
    """The cell of an earlier host that was not resumed yet."""

    async def execute(
        self,
        code: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        silent: bool = False,
        parent: str = "",
        on_input: OnInput | None = None,
        tag: str = "",
        on_begin: Callable[[str], None] | None = None,
        on_notice: Callable[[object], None] | None = None,
    ) -> CodeExecutionResult:
        """Run a cell and return its result, whatever its outcome.

        When this returns, the code no longer runs. Cancelling the awaiting task also stops the code.

        Args:
            code: Python as IPython takes it: magics, ``!cmd`` and top-level ``await`` included.
            timeout: Time limit of the cell in seconds, from its start; None for no limit.
            silent: As for `stream`.
            parent: As for `stream`.
            on_input: Answers `input()`: takes the prompt, returns the line. Without it `input()` is an error in the cell.
            tag: The program's label for this execution: `resumed` returns it if the next host continues it.
            on_begin: Called with the cell's position (`position`) when it is about to be sent to a kernel; first with an empty
                text if it has to wait for one. If it raises, the exception is raised here, and the cell does not run.
            on_notice: Receives notices for the reader (`Notice`), for a cell without a stream.

        Raises:
            InvalidInputError: The code is not valid, or the timeout is not a positive number.
            StateError: The session is not started, or closed.
            LaunchError: The last kernel had died and no new one could be started.
        """
        code = self._checked(code, timeout)
        cell = Cell(
            code,
            on_input,
            queue_limit=None,
            silent=silent,
            parent=parent,
            tag=tag,
            on_begin=on_begin,
            on_notice=on_notice,
        )
        return await self._cells.run(cell, timeout)

    async def stream(
        self,
        code: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        chunks: bool = True,
        rich: bool = False,
        silent: bool = False,
        parent: str = "",
        on_input: OnInput | None = None,
        tag: str = "",
        on_begin: Callable[[str], None] | None = None,
    ) -> AsyncGenerator[Event | CodeExecutionResult, None]:
        """Run a cell and yield its output as it happens, then its result.

        A slow reader slows the cell down (backpressure); a reader that leaves stops it.

        Args:
            code: As for `execute`.
            timeout: As for `execute`.
            chunks: Whether to yield `CodeExecutionChunk`s, or only the result.
            rich: Whether to yield displayed values as `OutputItem`s, which have all types, and events when output is cleared.
            silent: Whether the cell leaves no trace: no execution number, no history.
            parent: The id of the Jupyter message that requested it, if there is one: then messages of widgets are yielded
                (`wire.messages.Comm`), and prompts and answers of `input()` are not shown.
            on_input: As for `execute`.
            tag: As for `execute`.
            on_begin: As for `execute`.

        Yields:
            Chunks of output, notices, and last the `CodeExecutionResult`, which contains all output again.

        Raises:
            InvalidInputError, SandboxError, StateError, LaunchError: As for `execute`.
        """
        code = self._checked(code, timeout)
        queue = self.wanted.limits.queue if chunks else None
        cell = Cell(
            code,
            on_input,
            queue_limit=queue,
            followed=True,
            rich=rich,
            silent=silent,
            parent=parent,
            tag=tag,
            on_begin=on_begin,
        )
        # In its own task: the session's turn ends with the cell, even if the reader never comes back.
        running = asyncio.create_task(self._cells.run(cell, timeout))
        running.add_done_callback(functools.partial(no_more, cell))
        async with aclosing(self._follow(cell, running)) as events:
            async for event in events:
                yield event

    @property
    def resumed(self) -> str | None:
        """The tag of an earlier host's last execution, running or ended; None if there is nothing to `resume`."""
        return None if self._resumed is None else self._resumed[0].tag

    async def resume(self, skip: int = 0) -> AsyncGenerator[Event | CodeExecutionResult, None]:
        """Yield the output and the result of an earlier host's execution, as its `stream` would have. Once only.

        By asking for the next event, a reader acknowledges the one before. If it stored every event before asking for the next
        one, then `skip`, the number of stored events, makes this continue exactly where it was. An execution without a stream
        yields only its result.

        Args:
            skip: How many output events to skip, from the beginning. Notices are not counted (`Notice`).

        Yields:
            As `stream`.

        Raises:
            StateError: There is nothing to resume.
        """
        if self._resumed is None:
            raise StateError(f"{self._name} has no execution of an earlier host to resume")
        (cell, running), self._resumed = self._resumed, None
        skip -= cell.events.given
        async with aclosing(self._follow(cell, running)) as events:
            async for event in events:
                if skip > 0 and not isinstance(event, Notice | CodeExecutionResult):
                    skip -= 1
                else:
                    yield event

    @staticmethod
    async def _follow(
        cell: Cell, running: asyncio.Task[CodeExecutionResult]
    ) -> AsyncGenerator[Event | CodeExecutionResult, None]:
        """Yield the events and the result of a cell. If the reader leaves, the cell is stopped."""
        try:
            while (event := await cell.events.next()) is not None:
                yield event
            await asyncio.wait([running])
        finally:
            if not running.done():
                running.cancel()
                await despite_cancellation(running)
        yield running.result()

    async def install(self, *requirements: str, timeout: float | None = 600.0) -> CodeExecutionResult:
        """Install packages for this session, like ``%pip install`` in a cell.

        pip runs in a separate sandbox, out of reach of the session's code, and uses the index that this program's pip is
        configured for. The packages can be imported at once, survive `reset` (unless each kernel has its own srt, with
        ``launch="spawn"``), and are removed with the session.

        Args:
            requirements: The packages, such as ``"polars>=1"``, and options of pip.
            timeout: Time limit in seconds.

        Returns:
            The result: pip's output, and an error if it failed.

        Raises:
            InvalidInputError: There is nothing to install.
            StateError, LaunchError: As for `execute`.
        """
        check_requirements(requirements)
        return await self.execute(f"%pip install {shlex.join(requirements)}", timeout=timeout)

    async def interrupt(self) -> bool:
        """Stop the running cell; its result has the status ``interrupted``. Variables are kept if the code stops in time.

        Returns:
            Whether a cell was running. It no longer does.
        """
        return await self._cells.stop()

    async def reset(self) -> None:
        """Stop the running cell and continue with a fresh kernel, without variables and imports.

        Raises:
            StateError: The session is not started, or closed.
            LaunchError: No new kernel could be started; the next cell tries again.
        """
        await self._cells.reset()
        _log.info("%s was reset", self._name)

    @property
    def next_count(self) -> int:
        """The execution number of the next cell."""
        return self._kernels.count + 1

    @property
    def position(self) -> str:
        """The position of the next cell, if it can begin at once; else empty. No two cells have the same position."""
        ready = self._kernels.ready
        return "" if ready is None else ready.position

    def _checked(self, code: str, timeout: float | None) -> str:
        check_code(code)
        check_timeout(timeout)
        self._cells.check()
        return without_fence(code.removeprefix(_BYTE_ORDER_MARK))


def no_more(cell: Cell, running: asyncio.Task[CodeExecutionResult]) -> None:
    """Tell the reader of a cell that no more events will come."""
    cell.events.end()
    if not running.cancelled():
        running.exception()  # mark as retrieved: the reader may have left
