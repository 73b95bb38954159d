"""Sessions: cells run in order, and a kernel that dies is replaced."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shlex
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from cellblock.egress.network import SandboxNetwork
from cellblock.errors import InvalidInputError, StateError
from cellblock.host import exchange, import_guard
from cellblock.host.checkpoints.checkpoint import rolling_of
from cellblock.host.checkpoints.checkpoints import Checkpoints
from cellblock.host.checkpoints.files import CheckpointFiles
from cellblock.host.checkpoints.session import WithCheckpoints
from cellblock.host.checks import DEFAULT_TIMEOUT, OURS, Isolate, check_code, check_place, check_requirements, check_timeout
from cellblock.host.closing import AsyncOnly, Closing
from cellblock.host.kernels.cell import Cell, Event, Notice, OnInput
from cellblock.host.kernels.cells import Cells
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.kernels.kernel_slot import KernelSlot
from cellblock.host.kernels.stopping import despite_cancellation
from cellblock.host.launch.kernel_spec import KernelSpec, OnListener, RunningKernel
from cellblock.host.options import Defaults, SessionHooks, SessionOptions, resolve
from cellblock.host.output.kept import KeptResults
from cellblock.host.packages import SessionPackages
from cellblock.host.place import PrivateDirectories
from cellblock.host.reader import Reader
from cellblock.host.session_spec import kernel_spec, session_environment
from cellblock.model import CodeExecutionResult, Completions, HistoryEntry
from cellblock.packages.index import PackageIndex
from cellblock.telemetry import SessionTrace
from cellblock.wire.messages import Changed, Changes, Complete, Completed, Inspect, Inspected

if TYPE_CHECKING:
    from cellblock.egress.rules import Denial
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.files import Files
    from cellblock.host.keeping import Keeping, KernelRemains, SessionRemains
    from cellblock.host.kernels.family import Anew, Copy
    from cellblock.host.saving import Ends
    from cellblock.model.checkpoints import StateChanges
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable
    from cellblock.sandbox.probe import Facts
    from cellblock.snapshots import Store

_log = logging.getLogger("cellblock.sessions")


class SessionHost(Protocol):
    """What a session needs from its host.

    Attributes:
        defaults: What its sessions are if their options do not say otherwise.
        facts: What this machine has.
        index: Where packages for sessions come from.
        places: What the path of each session's own packages begins with.
        keeping: What outlives this process, if something does.
    """

    defaults: Defaults
    facts: Facts
    index: PackageIndex
    places: str
    keeping: Keeping | None

    def check_usable(self) -> None:
        """Check that the host can be used here and now."""

    def forget(self, session: Session) -> None:
        """Take note that a session is closed."""

    async def resume(self, copy: Copy, wanted: KernelSpec, how: Anew) -> Kernel:
        """Make a kernel of a copy of one, and wait until it takes cells."""

    def rolled(self, checkpoint: Checkpoint) -> None:
        """Take note of a checkpoint that was made without being asked for, and drop the oldest if there are too many."""

    def store(self) -> Store:
        """Return where the files of checkpoints are kept."""

    def branch(self, checkpoint: Checkpoint) -> Session:
        """Make a session that begins with a checkpoint."""

    async def launch(self, wanted: KernelSpec, prepare: Callable[[], None] = lambda: None) -> Kernel:
        """Start a kernel and wait until it takes cells; first `prepare` makes what it needs outside of it."""

    async def recover(
        self, remains: KernelRemains, wanted: KernelSpec, on_input: OnInput | None
    ) -> tuple[Kernel, Cell | None] | None:
        """Go on with a kernel of a host that was killed."""


class Session(WithCheckpoints, AsyncOnly):
    """A stateful IPython session. Cells run one after the other, in the order in which they were requested.

    Made by `Host.session`; an async context manager::

        async with Host() as host, host.session() as session:
            result = await session.execute("1 + 1")

    Attributes:
        wanted: What each of its kernels is asked to be.
        trace: Its spans, for programs that use OpenTelemetry.
        reader: Shows things to the reader of the output; for services of the session.
        adopted: Whether it went on with a kernel of an earlier host.
        adopted_at: The `position` at which that kernel stood; empty if there was none.
        loaded: What `load` has brought back; None if nothing was loaded.
    """

    def __init__(
        self,
        host: SessionHost,
        number: int,
        options: SessionOptions,
        hooks: SessionHooks,
        *,
        label: str = "",
        remains: SessionRemains | None = None,
        start_from: Checkpoint | None = None,
    ) -> None:
        resolved = resolve(options, host.defaults, host.facts)
        self._host = host
        self._name = f"session {number}"
        self._cwd = resolved.cwd
        self._writable = resolved.writable
        self._number, self._label, self._remains = number, label, remains
        place = f"{host.places}{number}" if remains is None else remains.place
        self._place, isolate = place, resolved.isolate
        kept = host.keeping if isolate != "srt" else None
        self._network = (
            SandboxNetwork(resolved.policy.network, lambda line: self.reader.note(line), options.on_host)
            if isolate in OURS
            else None
        )
        # Beside the packages, so that whatever removes these after the host removes it as well.
        self._private = PrivateDirectories(f"{place}-own", kept) if isolate == "landlock" else None
        env = session_environment(options.kernel_env or {}, resolved, self._network, self._private)
        if remains is not None:
            env = dict(remains.env)
        self._env = env
        self._packages = SessionPackages(place, resolved.interpreter, env, resolved.cwd, isolate=isolate, places=kept)
        takers: dict[str, OnListener] = {}
        if self._network is not None and self._network.reaches:
            takers["egress"] = self._taker("egress", self._network.adopt)
        if hooks.tool_port is not None:
            takers["tools"] = self._taker("tools", hooks.tool_port)
        self.wanted = kernel_spec(
            options,
            resolved,
            env,
            takers=takers,
            packages=self._packages,
            private=self._private,
            index=host.index,
            installer=self._install,
            session=self._name,
            kept=None if kept is None else number,
        )
        self.adopted = False
        self.adopted_at = ""
        self.loaded: LoadReport | None = None
        self.trace = SessionTrace(self._name)
        self._kernels = KernelSlot(self._launch)
        self._cells = Cells(
            self._name,
            self._kernels,
            hooks,
            self.trace,
            host.check_usable,
            resolved.images_dir,
            KeptResults(self.wanted.limits.history),
        )
        self.reader = Reader(self._cells, self._kernels)
        self._start_from = start_from
        rules = resolved.policy.filesystem
        self._checkpoints = Checkpoints(
            self._name,
            host,
            options,
            self.wanted,
            self._cells,
            self._kernels,
            rolling_of(options.recovery),
            (lambda _port: {}) if self._network is None else self._network.environment,
            hooks.outside,
            CheckpointFiles(
                resolved.cwd,
                host.store,
                automatic=resolved.stay_in is not None,
                protected=(*rules.deny_read, *rules.deny_write) if isolate in ("native", "srt") else (),
            ),
        )
        self._resumed: tuple[Cell, asyncio.Task[CodeExecutionResult]] | None = None
        self._closing = Closing()

    async def __aenter__(self) -> Self:
        if self._cells.state != "running":  # `Host.load` has started it
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Session {self._name.removeprefix('session ')} {self._cells.state}, isolate={self.isolate}, in {self._cwd!r}>"

    async def start(self, *, on_input: OnInput | None = None) -> None:
        """Start the first kernel, or go on with the one that the session has of an earlier host.

        Args:
            on_input: As for `execute`, for a cell of an earlier host that had one.

        Raises:
            LaunchError: No kernel could be started; `InterpreterError` and `PreloadError` are kinds of it.
            StateError: It was started before.
        """
        if self._cells.state != "not started":
            raise StateError(f"{self._name} is {self._cells.state}; make a new one")
        self._cells.state = "running"
        began = time.perf_counter()
        try:
            if self.wanted.isolate != "none":
                import_guard.distrust(self._writable)
            if self._host.keeping is not None and self._remains is None:
                self._host.keeping.session_made(self._number, self._label, self._place, self._env)
            await self._checkpoints.files.recover()
            await self._adopt(on_input)
            await self._kernels.live()
        except BaseException as error:  # also a cancellation: a start that fails leaves nothing
            _log.info("%s could not be started: %r", self._name, error)
            await self.close()
            raise
        took = 1000 * (time.perf_counter() - began)
        self.trace.start(self.isolate)
        _log.info("%s started in %.1f ms, isolate=%s, in %r", self._name, took, self.isolate, self._cwd)

    async def _adopt(self, on_input: OnInput | None) -> None:
        """Go on with the kernel of an earlier host, if there is one."""
        if self._remains is None or self._remains.kernel is None:
            return
        remains, self._remains.kernel = self._remains.kernel, None
        if (recovered := await self._host.recover(remains, self.wanted, on_input)) is None:
            return
        kernel, cell = recovered
        self._kernels.adopt(kernel)
        self.adopted, self.adopted_at = True, kernel.position
        if cell is not None:
            running = await self._cells.adopt(kernel, cell)
            running.add_done_callback(functools.partial(_no_more, cell))
            if not cell.silent:
                self._resumed = cell, running

    async def close(self) -> None:
        """Stop whatever runs and end every process of the session.

        Closing twice is fine. Cancelling the caller does not stop it.
        """
        self._cells.state = "closed"
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        await self._checkpoints.close()
        await self._cells.close()
        await self._release()
        self._host.forget(self)
        if self._host.keeping is not None:
            self._host.keeping.session_gone(self._number)
        self.trace.end()
        _log.info("%s closed", self._name)

    async def _release(self) -> None:
        """Release what a session has in addition to its kernel, whether or not it ever had one."""
        if self._network is not None:
            await self._network.close()
        await self._packages.remove()
        if self._private is not None:
            await self._private.remove()

    def _taker(self, name: str, taker: OnListener) -> OnListener:
        def take(listener: socket.socket) -> None:
            self._checkpoints.ports[name] = listener.getsockname()[1]
            taker(listener)

        return take

    async def _launch(self, dead: Kernel | None) -> Kernel:
        """Start a kernel: of the checkpoint that the session begins with, or of the last state of one that died, or afresh."""
        checkpoint, self._start_from = self._start_from, None
        if checkpoint is not None:
            return await self._checkpoints.begin_with(checkpoint)
        if dead is not None and (recovered := await self._checkpoints.recover(dead)) is not None:
            return recovered
        kernel = await self._host.launch(self.wanted, self._prepare)
        self._checkpoints.begin_anew(kernel)
        return kernel

    def _prepare(self) -> None:
        """Make the directories that a kernel needs; there is a process by now that removes them if we are killed."""
        self._packages.prepare()
        if self._private is not None:
            self._private.make()

    # -- cells ---------------------------------------------------------------------------------------------------------

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

        When this returns the code no longer runs. Cancelling the task that awaits this stops the code too.

        Args:
            code: Python as IPython takes it: magics, ``!cmd`` and top-level ``await`` included.
            timeout: Seconds that the cell may run, from its start; None for no limit.
            silent: As for `stream`.
            parent: As for `stream`.
            on_input: Answers `input()`: takes the prompt, returns the line. Without it `input()` is an error in the cell.
            tag: What the program calls this execution: `resumed` says it if the next host goes on with it.
            on_begin: Called with where the cell begins (`position`) when it is about to be sent to a kernel; before, with an
                empty text if it has to wait for one. What it raises is raised here, and the cell does not run.
            on_notice: Takes what is shown to the reader of a stream (`Notice`), if the cell is to have one.

        Raises:
            InvalidInputError: The code cannot be source code, or the timeout is not a positive number.
            StateError: The session is not started, or closed.
            LaunchError: The last kernel had died and no new one could be started.
        """
        self._check_cell(code, timeout)
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

        A slow reader slows the cell down; a reader that leaves stops it.

        Args:
            code: As for `execute`.
            timeout: As for `execute`.
            chunks: Whether to yield `CodeExecutionChunk`s, or only the result.
            rich: Whether to yield displayed values as `OutputItem`s, which have all types, and when output is cleared.
            silent: Whether the cell leaves no trace: no number, no history.
            parent: The id of the Jupyter message that asks for it, if one does: then messages of widgets are yielded
                (`wire.messages.Comm`), and prompts and answers of `input()` are not shown.
            on_input: As for `execute`.
            tag: As for `execute`.
            on_begin: As for `execute`.

        Yields:
            Chunks of output, what `notify` was given, and last the `CodeExecutionResult`, which has all of it again.

        Raises:
            InvalidInputError, SandboxError, StateError, LaunchError: As for `execute`.
        """
        self._check_cell(code, timeout)
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
        # In a task of its own: the session's turn ends with the cell, even if the reader never comes back.
        running = asyncio.create_task(self._cells.run(cell, timeout))
        running.add_done_callback(functools.partial(_no_more, cell))
        async with aclosing(self._follow(cell, running)) as events:
            async for event in events:
                yield event

    @property
    def resumed(self) -> str | None:
        """The tag of the last execution of an earlier host, running or ended; None if there is none to `resume`."""
        return None if self._resumed is None else self._resumed[0].tag

    async def resume(self, skip: int = 0) -> AsyncGenerator[Event | CodeExecutionResult, None]:
        """Yield the output and the result of an execution of an earlier host, as its `stream` would have. Once only.

        A reader that asks for the next event says that it needs the one before no more. If it kept every event before it
        asked for the next, then `skip`, the number of those that it kept, makes this go on exactly where it was. An execution
        that nobody streamed yields its result alone.

        Args:
            skip: Events of output not to yield, from the beginning. Those that were asked for are not counted (`Notice`).

        Yields:
            As `stream`.

        Raises:
            StateError: There is nothing to resume.
        """
        if self._resumed is None:
            raise StateError(f"{self._name} has no execution of an earlier host to resume")
        (cell, running), self._resumed = self._resumed, None
        skip -= cell.given
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
        """Yield what the reader of a cell is given, and its result. If the reader leaves, the cell is stopped."""
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

        pip runs in a separate sandbox, which no code of the session can reach, and takes packages from the index that this
        program's pip is configured for. The packages can be imported at once, survive `reset` (unless each kernel has its own
        srt, with ``launch="spawn"``), and are removed with the session.

        Args:
            requirements: What to install, such as ``"polars>=1"``; options of pip among them.
            timeout: Seconds that it may take.

        Returns:
            The result: what pip said, and an error if it failed.

        Raises:
            InvalidInputError: There is nothing to install.
            StateError, LaunchError: As for `execute`.
        """
        check_requirements(requirements)
        return await self.execute(f"%pip install {shlex.join(requirements)}", timeout=timeout)

    async def put(self, name: str, value: object) -> None:
        """Give a variable of the session a value.

        Text, bytes, numbers, lists and dicts, NumPy arrays, data frames of pandas and polars, and tables of pyarrow can be
        carried (docs/sessions.md). Nothing but the variable remains: no file, and no cell in the history.

        Args:
            name: The variable.
            value: The value.

        Raises:
            InvalidInputError: The name is not one, the value cannot be carried, or it is over the limits of a cell.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        await exchange.put(self._cells.run_silently, self._room, name, value)

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
        return await exchange.get(self._cells.run_silently, self._room, name, unpickle=unpickle)

    async def variables(self) -> list[Variable]:
        """Return the variables of the session: type, size, shape, and a short text of each.

        No method that the session's code has defined is called for it. If there are many thousands, the first ones are
        returned, as many as fit in a message of 1 MB.

        Raises:
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        return [*(await exchange.survey(self._cells.run_silently)).variables.values()]

    async def diff(self, checkpoint: Checkpoint) -> StateChanges:
        """Return what has changed since a checkpoint: which variables are new, have changed, or are deleted.

        The same is told of the files of the workspace, if the checkpoint holds them (``files="copy"``). Values are compared by
        digests of what pickling writes. A kernel is made of the checkpoint for it, for a moment. What cannot be compared, such
        as a lock, or not within two seconds, is listed as unknown.

        Args:
            checkpoint: The checkpoint, of this session or another one of the same host.

        Raises:
            CheckpointError: It is gone, or belongs to another host.
            SnapshotError: The files cannot be read.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        from cellblock.host.checkpoints.diff import diff  # few programs need it

        return await diff(self._cells, self._checkpoints, checkpoint)

    async def save(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> SaveReport:
        """Save the session to a file, from which `load` and `Host.load` continue it, on this machine or another one.

        Variables, imports, functions and classes of the session, the code of its cells, its working directory, and
        environment variables that the code has changed are saved (docs/checkpoints.md). What cannot be saved is listed in the
        report. The session's code does the pickling, in its sandbox.

        Args:
            path: The file. If it exists it is replaced, but not before the new one is complete.
            workspace: Whether to save the files of the workspace, too.
            timeout: Seconds that pickling may take.

        Raises:
            InvalidInputError: There cannot be a file of that name.
            StoreError: It cannot be written. What had the name before is as it was.
            ExecutionTimeoutError: Pickling took too long.
            FilesError: A file of the workspace cannot be read.
            StateError, LaunchError, KernelDiedError, ProtocolError: As for `execute`, but raised.
        """
        from cellblock.host import saving  # few sessions are saved

        check_timeout(timeout)
        return await saving.save(self._ends, path, self._cells.past.present, workspace=workspace, timeout=timeout)

    async def load(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> LoadReport:
        """Continue a session that was saved to a file. What this session was before is gone: it gets a fresh kernel.

        What cannot be brought back, such as a variable of a library that is not installed here, is listed in the report. The
        file may come from anywhere: its code runs in this session's sandbox only, as a cell does.

        Args:
            path: The file.
            workspace: Whether to unpack the files that were saved. They replace files of the same names.
            timeout: Seconds that loading may take.

        Raises:
            InvalidInputError: It is not a saved session, or is damaged. This session is as it was.
            StoreError: It cannot be read.
            ExecutionTimeoutError: Loading took too long.
            FilesError: The files cannot be unpacked.
            StateError, LaunchError, KernelDiedError, ProtocolError: As for `execute`, but raised.
        """
        from cellblock.host import saving  # as above

        check_timeout(timeout)
        self.loaded, cells = await saving.load(self._ends, path, self._renew, workspace=workspace, timeout=timeout)
        self._cells.past.replace(cells)
        return self.loaded

    async def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the cells and what they showed as a notebook, which Jupyter opens, or as a script.

        Args:
            path: The file, which is replaced if it exists: ``.ipynb`` for a notebook, ``.py`` for a script without outputs.

        Returns:
            The file's path.

        Raises:
            InvalidInputError: There cannot be a file of that name, or it ends with something else.
            StoreError: It cannot be written. What had the name before is as it was.
        """
        from cellblock.host import notebook  # as above

        return await notebook.export(path, self.history())

    async def _renew(self) -> None:
        if self.next_count > 1 or self._cells.past.entries:
            await self.reset()

    @property
    def _ends(self) -> Ends:
        from cellblock.host.saving import Ends

        return Ends(self._cells.run_silently, self._cells.run_and_take, self._room, self._cwd, self.files)

    @property
    def _room(self) -> int:
        return min(self.wanted.limits.media, self.wanted.limits.values)

    async def _install(self, kernel: RunningKernel, arguments: tuple[str, ...]) -> int:
        return await self._packages.install(kernel, arguments, self._host.index, self._host.facts, self._host.launch)

    async def interrupt(self) -> bool:
        """Stop the running cell; its result says ``interrupted``. Variables are kept if the code stops in time.

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

    # -- questions -----------------------------------------------------------------------------------------------------

    async def complete(self, code: str, cursor: int | None = None) -> Completions:
        """Return what could complete some code at a place, given the session's variables.

        Args:
            code: The code so far.
            cursor: The place, in characters from its beginning; its end by default.

        Raises:
            InvalidInputError, StateError, KernelDiedError: The input is bad, the session is not there, or its kernel died.
        """
        answer = await self._cells.ask(Complete(*check_place(code, cursor)))
        assert isinstance(answer, Completed)
        return Completions(list(answer.matches), answer.start, answer.end)

    async def inspect(self, code: str, cursor: int | None = None, *, detail: int = 0) -> str | None:
        """Return what is known about the name at a place in some code: signature, docstring, type.

        Args:
            code: The code.
            cursor: The place, in characters from its beginning; its end by default.
            detail: 1 adds the source.

        Returns:
            The description, or None if nothing of that name exists.

        Raises:
            InvalidInputError, SandboxError, StateError, KernelDiedError: As for `complete`.
        """
        if detail not in (0, 1):
            raise InvalidInputError(f"detail must be 0 or 1, not {detail!r}")
        answer = await self._cells.ask(Inspect(*check_place(code, cursor), detail))
        assert isinstance(answer, Inspected)
        return answer.text

    async def changes(self) -> tuple[dict[str, str], list[str]]:
        """Return what cells have done to variables since this was last called, as far as the kernel says.

        Returns:
            The types of the variables that are new, or mean another object than before, by their names; and the names of those
            that are gone. At most 50 of each.

        Raises:
            StateError, KernelDiedError: As for `complete`.
        """
        answer = await self._cells.ask(Changes())
        assert isinstance(answer, Changed)
        return dict(zip(answer.names, answer.types, strict=True)), list(answer.gone)

    def history(self, count: int | None = None) -> list[HistoryEntry]:
        """Return the cells that this session ran, oldest first, across resets, with those results that are still kept.

        Args:
            count: How many of the last ones; all that are kept (1,000) by default.
        """
        entries = self._cells.past.entries
        return entries if count is None else entries[max(len(entries) - count, 0) :]

    @functools.cached_property
    def files(self) -> Files:
        """The files of the session's working directory, for the caller to write, read and copy."""
        from cellblock.host.files import Files

        return Files(Path(self._cwd))

    @property
    def afresh(self) -> bool:
        """Whether its kernel began without variables, and is not made of a checkpoint."""
        kernel = self._kernels.current
        return kernel is None or not kernel.of_copy

    @property
    def next_count(self) -> int:
        """The number that the next cell of its kernel gets."""
        return self._kernels.count + 1

    @property
    def position(self) -> str:
        """Where the next cell begins, if it can begin at once; else empty. No two cells begin at the same position."""
        ready = self._kernels.ready
        return "" if ready is None else ready.position

    @property
    def kept(self) -> bool:
        """Whether a later host would go on with its kernel, and have the last result again."""
        kernel = self._kernels.current
        return self.wanted.kept is not None and kernel is not None and kernel.death is None

    @property
    def denials(self) -> list[Denial]:
        """The last attempts to reach something on the network that the policy does not allow, oldest first."""
        return [] if self._network is None else list(self._network.denials)

    @property
    def isolate(self) -> Isolate:
        """How its kernels are isolated."""
        return self.wanted.isolate

    async def wait_for_kernel(self) -> None:
        """Wait until there is a kernel that takes cells, if the last one has died.

        Raises:
            LaunchError, StateError: As for `execute`.
        """
        await self._kernels.live()

    async def has_kernel(self) -> bool:
        """Look whether its kernel lives. If that has just ended, this waits until it is known."""
        kernel = self._kernels.current
        if kernel is None:
            return False
        await kernel.settle()
        return kernel.death is None

    @property
    def memory(self) -> int:
        """Bytes that its processes use, as of the last look; 0 if nobody looks: without a sandbox, memory has no limit."""
        kernel = self._kernels.current
        return 0 if kernel is None or kernel.death is not None else kernel.memory.used

    @property
    def workspace(self) -> str:
        """The directory that it works in."""
        return self._cwd

    def _check_cell(self, code: str, timeout: float | None) -> None:
        check_code(code)
        check_timeout(timeout)
        self._cells.check()


def _no_more(cell: Cell, running: asyncio.Task[CodeExecutionResult]) -> None:
    """Tell the reader of a cell that there is nothing more to come."""
    cell.no_more()
    if not running.cancelled():
        running.exception()  # mark as retrieved: the reader may have left
