"""Sessions: cells run in order, and a kernel that dies is replaced."""

from __future__ import annotations

import asyncio
import functools
import logging
import shlex
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from cellblock.egress.network import SandboxNetwork
from cellblock.errors import InvalidInputError, StateError
from cellblock.host import exchange, import_guard
from cellblock.host.cell import Cell, Notice, OnInput
from cellblock.host.checks import DEFAULT_TIMEOUT, Isolate, check_code, check_place, check_timeout
from cellblock.host.closing import Closing
from cellblock.host.deadline import Deadline
from cellblock.host.kernel import Kernel
from cellblock.host.kernel_slot import KernelSlot
from cellblock.host.kernel_spec import KernelSpec, OnListener, RunningKernel
from cellblock.host.options import Defaults, SessionHooks, SessionOptions, resolve
from cellblock.host.packages import SessionPackages
from cellblock.host.requests import answering
from cellblock.host.session_spec import kernel_spec, session_environment
from cellblock.host.stopping import answer_to, begin_stop, despite_cancellation, kill, leave
from cellblock.model import (
    CodeExecutionChunk,
    CodeExecutionResult,
    Completions,
    HistoryEntry,
)
from cellblock.packages.index import PackageIndex
from cellblock.telemetry import SessionTrace
from cellblock.wire.messages import Complete, Completed, Inspect, Inspected

if TYPE_CHECKING:
    from cellblock.egress.rules import Denial
    from cellblock.host.files import Files
    from cellblock.sandbox.probe import Facts

_log = logging.getLogger("cellblock.sessions")

_HISTORY = 1000
_HISTORY_CODE = 100_000


class SessionHost(Protocol):
    """What a session needs from its host.

    Attributes:
        defaults: What its sessions are if their options do not say otherwise.
        facts: What this machine has.
        index: Where packages for sessions come from.
        places: What the path of each session's own packages begins with.
    """

    defaults: Defaults
    facts: Facts
    index: PackageIndex
    places: str

    def check_usable(self) -> None:
        """Check that the host can be used here and now."""

    def forget(self, session: Session) -> None:
        """Take note that a session is closed."""

    async def launch(self, wanted: KernelSpec, prepare: Callable[[], None] = lambda: None) -> Kernel:
        """Start a kernel and wait until it takes cells; first `prepare` makes what it needs outside of it."""


class Session:
    """A stateful IPython session. Cells run one after the other, in the order in which they were requested.

    Made by `Host.session`; an async context manager::

        async with Host() as host, host.session() as session:
            result = await session.execute("1 + 1")

    Attributes:
        wanted: What each of its kernels is asked to be.
        trace: Its spans, for programs that use OpenTelemetry.
    """

    def __init__(self, host: SessionHost, number: int, options: SessionOptions, hooks: SessionHooks) -> None:
        resolved = resolve(options, host.defaults, host.facts)
        self._host = host
        self._name = f"session {number}"
        self._cwd = resolved.cwd
        self._images_dir = resolved.images_dir
        self._writable = resolved.writable
        self._hooks = hooks
        self._network = (
            SandboxNetwork(resolved.policy.network, self.note, options.on_host) if resolved.isolate == "native" else None
        )
        env = session_environment(options.kernel_env or {}, resolved, self._network)
        self._packages = SessionPackages(
            f"{host.places}{number}", resolved.interpreter, env, resolved.cwd, isolate=resolved.isolate
        )
        takers: dict[str, OnListener] = {}
        if self._network is not None and self._network.reaches:
            takers["egress"] = self._network.adopt
        if hooks.tool_port is not None:
            takers["tools"] = hooks.tool_port
        self.wanted = kernel_spec(
            options,
            resolved,
            env,
            takers=takers,
            packages=self._packages,
            index=host.index,
            installer=self._install,
            session=self._name,
        )
        self._turn = asyncio.Lock()
        self.trace = SessionTrace(self._name)
        self._kernels = KernelSlot(functools.partial(host.launch, self.wanted, self._packages.prepare))
        self._cell: Cell | None = None
        self._questioned: Kernel | None = None
        self._history: deque[HistoryEntry] = deque(maxlen=_HISTORY)
        self._state = "not started"
        self._closing = Closing()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Session {self._name.removeprefix('session ')} {self._state}, isolate={self.isolate}, in {self._cwd!r}>"

    async def start(self) -> None:
        """Start the first kernel.

        Raises:
            LaunchError: No kernel could be started; `InterpreterError` and `PreloadError` are kinds of it.
            StateError: It was started before.
        """
        if self._state != "not started":
            raise StateError(f"{self._name} is {self._state}; make a new one")
        self._state = "running"
        began = time.perf_counter()
        try:
            if self.wanted.isolate != "none":
                import_guard.distrust(self._writable)
            await self._kernels.live()
        except BaseException as error:
            _log.info("%s could not be started: %r", self._name, error)
            await self.close()
            raise
        took = 1000 * (time.perf_counter() - began)
        self.trace.start(self.isolate)
        _log.info("%s started in %.1f ms, isolate=%s, in %r", self._name, took, self.isolate, self._cwd)

    async def close(self) -> None:
        """Stop whatever runs and end every process of the session.

        Closing twice is fine, and cancelling whoever waits for it does not stop it.
        """
        self._state = "closed"
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        cell, kernel = self._cell, self._kernels.current
        if cell is not None and kernel is not None and not cell.ended.is_set():
            await kill(kernel, cell, "interrupted")
        await self._kernels.close()
        await self._release()
        self._host.forget(self)
        self.trace.end()
        _log.info("%s closed", self._name)

    async def _release(self) -> None:
        """Give back what a session has beside its kernel, whether or not it ever had one."""
        if self._network is not None:
            await self._network.close()
        await self._packages.remove()

    # -- cells ---------------------------------------------------------------------------------------------------------

    async def execute(
        self, code: str, *, timeout: float | None = DEFAULT_TIMEOUT, on_input: OnInput | None = None
    ) -> CodeExecutionResult:
        """Run a cell and return its result, whatever became of it.

        When this returns the code no longer runs. Cancelling the task that awaits this stops the code too.

        Args:
            code: Python as IPython takes it: magics, ``!cmd`` and top-level ``await`` included.
            timeout: Seconds that the cell may run, from its start; None for no limit.
            on_input: Answers `input()`: takes the prompt, returns the line. Without it `input()` is an error in the cell.

        Raises:
            InvalidInputError: The code cannot be source code, or the timeout is no positive number.
            StateError: The session is not started, or closed.
            LaunchError: The last kernel had died and no new one could be started.
        """
        self._check_cell(code, timeout)
        return await self._run(Cell(code, on_input, queue_limit=None), timeout)

    async def stream(
        self,
        code: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        chunks: bool = True,
        on_input: OnInput | None = None,
    ) -> AsyncGenerator[CodeExecutionChunk | Notice | CodeExecutionResult, None]:
        """Run a cell and yield its output as it happens, then its result.

        A reader that is slow slows the cell down; one that leaves stops it.

        Args:
            code: As for `execute`.
            timeout: As for `execute`.
            chunks: Whether to yield `CodeExecutionChunk`s, or only the result.
            on_input: As for `execute`.

        Yields:
            Chunks of output, what `notify` was given, and last the `CodeExecutionResult`, which has all of it again.

        Raises:
            InvalidInputError, SandboxError, StateError, LaunchError: As for `execute`.
        """
        self._check_cell(code, timeout)
        cell = Cell(code, on_input, queue_limit=self.wanted.limits.queue if chunks else None, followed=True)
        # In a task of its own: the session's turn ends with the cell, even if the reader never comes back.
        running = asyncio.create_task(self._run(cell, timeout))
        running.add_done_callback(functools.partial(_no_more, cell))
        try:
            while (event := await cell.next_event()) is not None:
                yield event
            await asyncio.wait([running])
        finally:
            if not running.done():
                running.cancel()
                await despite_cancellation(running)
        yield running.result()

    async def install(self, *requirements: str, timeout: float | None = 600.0) -> CodeExecutionResult:
        """Install packages for this session, as ``%pip install`` in a cell does.

        pip runs in a sandbox of its own, which no code of the session can reach, and takes packages from the index that this
        program's pip is configured for. What it installs can be imported at once, survives `reset` (not where each
        kernel has an srt of its own, ``launch="spawn"``), and is gone with the session.

        Args:
            requirements: What to install, such as ``"polars>=1"``; options of pip among them.
            timeout: Seconds that it may take.

        Returns:
            The result: what pip said, and an error where it failed.

        Raises:
            InvalidInputError: There is nothing to install.
            StateError, LaunchError: As for `execute`.
        """
        if not requirements:
            raise InvalidInputError("say what to install: install('package>=1')")
        return await self.execute(f"%pip install {shlex.join(requirements)}", timeout=timeout)

    async def put(self, name: str, value: object) -> None:
        """Give a variable of the session a value.

        Text, bytes, numbers, lists and dicts, NumPy arrays, data frames of pandas and polars, and tables of pyarrow can be
        carried (docs/sessions.md). It leaves nothing but the variable: no file, no cell in the history.

        Args:
            name: The variable.
            value: The value.

        Raises:
            InvalidInputError: The name is not one, the value cannot be carried, or it is over the limits of a cell.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        await exchange.put(self._silently, self._room, name, value)

    async def get(self, name: str, *, unpickle: bool = False) -> Any:
        """Return the value of a variable of the session, as far as `put` can carry it.

        Args:
            name: The variable.
            unpickle: Whether to have any other value pickled, and unpickle it here. The session's code can then run
                whatever it likes in this program.

        Raises:
            InvalidInputError: There is no such variable, its value cannot be carried, or it is over the limits of a cell.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        return await exchange.get(self._silently, self._room, name, unpickle=unpickle)

    @property
    def _room(self) -> int:
        return min(self.wanted.limits.media, self.wanted.limits.values)

    async def _silently(self, code: str, on_input: OnInput | None) -> CodeExecutionResult:
        """Run a cell that leaves no trace; what background work has printed until its end is for the next one."""
        self._check_cell(code, DEFAULT_TIMEOUT)
        result = await self._run(Cell(code, on_input, queue_limit=None, silent=True), DEFAULT_TIMEOUT)
        if (kernel := self._kernels.current) is not None:
            for item in result.outputs:
                if item.kind == "stream" and item.name is not None and item.text:
                    kernel.add_text(item.name, item.text.encode("utf-8", "replace"))
        return result

    async def _install(self, kernel: RunningKernel, arguments: tuple[str, ...]) -> int:
        return await self._packages.install(kernel, arguments, self._host.index, self._host.facts, self._host.launch)

    async def interrupt(self) -> bool:
        """Stop the running cell; its result says ``interrupted``. Variables are kept where the code lets go in time.

        Returns:
            Whether a cell was running. It no longer does.
        """
        return await self._stop()

    async def reset(self) -> None:
        """Stop what runs and go on with a fresh kernel, without variables and imports.

        Raises:
            StateError: The session is not started, or closed.
            LaunchError: No new kernel could be started; the next cell tries again.
        """
        self._check_running()
        await self._stop()
        if self._questioned is not None:
            await self._questioned.interrupt()
        async with self._turn:
            self._check_running()
            await self._kernels.renew()
        _log.info("%s was reset", self._name)

    # -- questions -----------------------------------------------------------------------------------------------------

    async def complete(self, code: str, cursor: int | None = None) -> Completions:
        """Return what could stand at a place in some code, given the session's variables.

        Args:
            code: The code so far.
            cursor: The place, in characters from its beginning; its end by default.

        Raises:
            InvalidInputError, StateError, KernelDiedError: The input is bad, the session is not there, or its kernel died.
        """
        answer = await self._ask(Complete(*check_place(code, cursor)))
        assert isinstance(answer, Completed)
        return Completions(list(answer.matches), answer.start, answer.end)

    async def inspect(self, code: str, cursor: int | None = None, *, detail: int = 0) -> str | None:
        """Return what is known of the name at a place in some code: signature, docstring, type.

        Args:
            code: The code.
            cursor: The place, in characters from its beginning; its end by default.
            detail: 1 adds the source.

        Returns:
            The description, or None where nothing of that name exists.

        Raises:
            InvalidInputError, SandboxError, StateError, KernelDiedError: As for `complete`.
        """
        if detail not in (0, 1):
            raise InvalidInputError(f"detail must be 0 or 1, not {detail!r}")
        answer = await self._ask(Inspect(*check_place(code, cursor), detail))
        assert isinstance(answer, Inspected)
        return answer.text

    def history(self, count: int | None = None) -> list[HistoryEntry]:
        """Return the cells that this session ran, oldest first, across resets.

        Args:
            count: How many of the last ones; all that are kept (1,000) by default.
        """
        entries = list(self._history)
        return entries if count is None else entries[max(len(entries) - count, 0) :]

    async def _ask(self, question: Complete | Inspect) -> Completed | Inspected:
        self._check_running()
        self._check_not_answering()
        async with self._turn:
            self._questioned = await self._live_kernel()
            try:
                return await answer_to(self._questioned, question)
            finally:
                self._questioned = None

    @functools.cached_property
    def files(self) -> Files:
        """The files of the session's working directory, for the caller to write, read and copy."""
        from cellblock.host.files import Files

        return Files(Path(self._cwd))

    @property
    def denials(self) -> list[Denial]:
        """The last attempts to reach something on the network that the policy does not allow, oldest first."""
        return [] if self._network is None else list(self._network.denials)

    @property
    def isolate(self) -> Isolate:
        """How its kernels are isolated."""
        return self.wanted.isolate

    @property
    def workspace(self) -> str:
        """The directory that it works in."""
        return self._cwd

    # -- for whoever serves something in the session -------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether a cell is running now."""
        return self._cell is not None and not self._cell.ended.is_set()

    def notify(self, about: object) -> bool:
        """Hand something to whoever streams the running cell, as a `Notice`.

        Returns:
            Whether there is somebody.
        """
        if self._cell is None or not self._cell.followed or not self.running:
            return False
        self._cell.notify(Notice(about))
        return True

    def retract(self, about: object) -> None:
        """Take back what was handed to `notify`, where nobody has read it."""
        if self._cell is not None:
            self._cell.retract(about)

    def tell(self, line: str) -> None:
        """Show a line to whoever streams the running cell's output; it is not in the result."""
        if self._cell is not None and self.running:
            self._cell.emit(f"{line}\n", "stderr", ours=True)

    def note(self, line: str) -> None:
        """Show a line in the output of the running cell, or of the next one."""
        if (kernel := self._kernels.current) is not None:
            kernel.note(line)

    def show(self, data: Mapping[str, bytes]) -> None:
        """Show a MIME bundle in the output of the running cell, or of the next one."""
        if (kernel := self._kernels.current) is not None:
            kernel.show(data)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if self._state == "not started":
            raise StateError(f"{self._name} is not started: use 'async with', or await start() first")
        if self._state == "closed":
            raise StateError(f"{self._name} is closed; make a new one")
        self._host.check_usable()

    def _check_not_answering(self) -> None:
        """Check that this is not called by what a cell of this session waits for: each would wait for the other."""
        cell = answering.get()
        if cell is not None and cell is self._cell and cell.asked:
            raise StateError(f"{self._name} waits for this callback to answer its cell: use another session for other code")

    def _check_cell(self, code: str, timeout: float | None) -> None:
        check_code(code)
        check_timeout(timeout)
        self._check_running()
        self._check_not_answering()

    async def _live_kernel(self) -> Kernel:
        self._check_running()  # again: it may have been closed while we waited for our turn
        return await self._kernels.live()

    async def _run(self, cell: Cell, timeout: float | None) -> CodeExecutionResult:
        """Run a cell when it is its turn."""
        async with self._turn:
            kernel = await self._live_kernel()
            span = self.trace.begin_cell(cell.code)
            result: CodeExecutionResult | None = None
            try:
                result = await self._run_in(kernel, cell, timeout)
                return result
            finally:
                status = "interrupted" if result is None else result.status
                self.trace.end_cell(span, status, 0 if result is None else result.duration_ms)

    async def _run_in(self, kernel: Kernel, cell: Cell, timeout: float | None) -> CodeExecutionResult:
        deadline = self._begin(kernel, cell, timeout)
        try:
            await cell.ended.wait()
        finally:
            if deadline is not None:
                deadline.cancel()
            try:
                await leave(kernel, cell)
            finally:
                self._cell = None
        return await self._finished(cell)

    def _begin(self, kernel: Kernel, cell: Cell, timeout: float | None) -> Deadline | None:
        """Begin a cell and set its deadline."""
        kernel.begin(cell)
        self._cell = cell
        _log.debug("%s: cell begun, timeout %s s", self._name, timeout)
        self._hooks.on_begin()
        if timeout is None:
            return None
        return Deadline(timeout, self._hooks.uncounted_seconds, lambda: begin_stop(kernel, cell, "timeout"))

    async def _finished(self, cell: Cell) -> CodeExecutionResult:
        result = await cell.finished(self._images_dir)
        _log.info("%s: cell ended: %s in %d ms, recovery %s", self._name, result.status, result.duration_ms, result.recovery)
        if not cell.silent:
            self._history.append(HistoryEntry(cell.code[:_HISTORY_CODE], result.status, result.execution_count))
        if self._state == "running":
            # Not awaited: whoever waits for this result need not wait for the next kernel.
            self._kernels.replace_dead()
        if cell.failure is not None:
            raise cell.failure
        return result

    async def _stop(self) -> bool:
        cell, kernel = self._cell, self._kernels.current
        if cell is None or kernel is None or cell.ended.is_set():
            return False
        begin_stop(kernel, cell, "interrupted")
        await cell.ended.wait()
        return True


def _no_more(cell: Cell, running: asyncio.Task[CodeExecutionResult]) -> None:
    """Tell the reader of a cell that there is nothing more to come."""
    cell.no_more()
    if not running.cancelled():
        running.exception()  # mark as retrieved: the reader may have left
