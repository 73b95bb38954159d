"""Sessions: cells run in order, and a kernel that dies is replaced."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeAlias, TypeVar, Unpack, overload

from cellblock.common.config import Isolate
from cellblock.errors import InvalidInputError, LaunchError, StateError, UnsupportedError
from cellblock.host import import_guard
from cellblock.host.checkpoints.checkpoints import Before, Checkpoints
from cellblock.host.checkpoints.files import CheckpointFiles
from cellblock.host.checkpoints.forking import Branching, adopt
from cellblock.host.checks import (
    DEFAULT_TIMEOUT,
    INSTALL_TIMEOUT,
    check_code,
    check_requirements,
    check_timeout,
    without_fence,
)
from cellblock.host.closing import AsyncOnly, Closing
from cellblock.host.environment import check_still_usable
from cellblock.host.exchange import Values
from cellblock.host.explanations import Explanations
from cellblock.host.holding import Holding
from cellblock.host.kernels.cell import Cell, OnInput
from cellblock.host.kernels.cell_events import Event
from cellblock.host.kernels.cells import Cells, SessionWatcher
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.kernels.kernel_slot import KernelSlot
from cellblock.host.kernels.questions import Questions
from cellblock.host.launch.kernel_spec import RunningKernel
from cellblock.host.options import Defaults, Exact, ResolvedOptions, SessionHooks, SessionOptions, kind_of
from cellblock.host.output.kept import KeptResults
from cellblock.host.programs.programs import Programs
from cellblock.host.reader import Reader
from cellblock.host.session_surroundings import SessionSurroundings, resolve_for, walls_of
from cellblock.host.survival.keeper import SessionParts
from cellblock.host.survival.succession import Succession
from cellblock.host.telemetry import SessionTrace
from cellblock.model import CodeExecutionResult, HistoryEntry
from cellblock.model.checkpoints import Changes, FilesMode, FileVersions, ForkKeywords, Undone
from cellblock.model.programs import Processes
from cellblock.walls.packages.index import PackageIndex

if TYPE_CHECKING:
    from cellblock.host.checkpoints.branches import Beginning
    from cellblock.host.checkpoints.budget import Budget
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.eager import Eager
    from cellblock.host.files import Files
    from cellblock.host.host_kernels import Kernels
    from cellblock.host.programs.files import SessionFiles
    from cellblock.host.saving import Saving
    from cellblock.host.snapshots import Store
    from cellblock.host.survival.keeper import Keeper
    from cellblock.host.survival.remains import SessionRemains
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.walls.egress.rules import Denial
    from cellblock.walls.sandbox.probe import Facts

_P = ParamSpec("_P")
_T = TypeVar("_T")
Method: TypeAlias = Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]
_log = logging.getLogger("cellblock.sessions")
_BYTE_ORDER_MARK = "\ufeff"
"""Editors write it at the beginning of files, where Python accepts it; in a string it is a syntax error."""


class SessionHost(Protocol):
    """The part of a host that a session needs.

    Attributes:
        defaults: The defaults of its options.
        facts: The facts of this machine.
        index: The package index.
        keeper: Keeps for the next host what outlives this process.
        kernels: The kernels of its sessions.
    """

    defaults: Defaults
    facts: Facts
    index: PackageIndex
    checkpoint_budget: Budget
    keeper: Keeper
    kernels: Kernels

    def check_usable(self) -> None:
        """Check that the host can be used here and now."""

    def forget(self, session: Session) -> None:
        """Remove a closed session."""

    def store(self) -> Store:
        """Return the store for checkpoint files."""

    def session(self, *, start_from: Beginning) -> Session:
        """Make a session that starts from a checkpoint."""


def _of(part: str, method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method that calls that of a part of the session, with the same arguments and documentation."""

    def call(self: Any, /, *args: _P.args, **keywords: _P.kwargs) -> _T:
        return method(getattr(self, part), *args, **keywords)

    return functools.update_wrapper(call, method)


def _traced(name: str) -> Callable[[Method[_P, _T]], Method[_P, _T]]:
    """Return a decorator for a method that makes or uses a checkpoint: each call is a step with this name."""

    def decorate(method: Method[_P, _T]) -> Method[_P, _T]:
        async def call(self: Any, /, *args: _P.args, **keywords: _P.kwargs) -> _T:
            with self.trace.checkpointing(name):
                return await method(self, *args, **keywords)

        return functools.update_wrapper(call, method)

    return decorate


class Session(AsyncOnly):
    """A stateful IPython session. Cells run one at a time, in the order in which they were requested.

    Made by `Host.session`; an async context manager::

        async with Host() as host, host.session() as session:
            result = await session.execute("1 + 1")

    Attributes:
        wanted: The specification of its kernels.
        trace: Its spans, for programs that use OpenTelemetry.
        reader: The reader of its output, for services of the session.
        holding: Holds its tool calls and connections while `eager` runs ahead.
        succession: The state that it takes over from an earlier host, and leaves to a later one.
        untouched: Whether it continues one of an earlier host, and has not begun with that: closing it ends nothing then.
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
        start_from: Beginning | None = None,
    ) -> None:
        self._branch = start_from.directory() if start_from is not None else None if remains is None else remains.branch
        self._entered = False
        self.untouched = remains is not None
        resolved = resolve_for(host, options, self._branch, start_from)
        self._host = host
        self._name = f"session {number}"
        self._cwd = resolved.stay_in or resolved.cwd
        self._writable = resolved.writable
        self._walls = walls_of(resolved, host.facts, self._cwd)
        # An earlier host, or the session that the checkpoint is of, has installed them.
        self._packages = () if start_from is not None or remains is not None else tuple(options.packages)
        self.holding = Holding()
        self.trace = SessionTrace(self._name)
        around = self._around = SessionSurroundings(
            self._name,
            options,
            resolved,
            number,
            index=host.index,
            keeper=host.keeper,
            remains=remains,
            note=lambda line: self.reader.note(line),
            branched=lambda: self._kernels.current is not None and self._kernels.current.family.branched,
            hold=self.holding.wait,
            step=self.trace.step,
        )
        takers = around.takers(hooks.tool_port, lambda name, port: self._checkpoints.resuming.ports.update({name: port}))
        self.wanted = around.kernel_spec(options, takers=takers, installer=self._install)
        self._kernels = KernelSlot(
            self._launch, around.withdraw_questions, lambda why: self._programs.kill_all(f"{self._name} is {why}")
        )
        self._cells = Cells(
            self._name,
            self._kernels,
            hooks,
            self.trace,
            host.check_usable,
            resolved.images_dir,
            KeptResults(self.wanted.limits.history),
            around.withdraw_questions,
        )
        self._values = Values(self._name, self._cells.run_silently, self._cells.run_to_look, self._room)
        self._explanations = Explanations(self._cwd, resolved.tier, resolved.policy, lambda: self.files)
        self._questions = Questions(self._cells)
        self._exact = isinstance(kind_of(options.recovery), Exact)
        self._programs = Programs(self._name, self._kernels.live, self._cells.check_running, self.trace)
        self.reader = Reader(self._cells, self._kernels)
        self._start_from = start_from
        self._checkpoints = self._make_checkpoints(options, resolved, hooks, label)
        parts = SessionParts(
            number,
            around.place,
            around.env,
            self._branch,
            self.wanted,
            self._cells,
            self._kernels,
            self._checkpoints,
            self.reader.note,
            host.kernels.recover,
        )
        self._keeper = host.keeper.session(parts, label, remains)
        self.succession = Succession(self._keeper, self._cells, self._kernels, self._checkpoints)
        self._closing = Closing()

    def _make_checkpoints(
        self, options: SessionOptions, resolved: ResolvedOptions, hooks: SessionHooks, label: str
    ) -> Checkpoints:
        network = self._around.network
        return Checkpoints(
            self._name,
            self._host,
            options,
            resolved,
            self.wanted,
            self._cells,
            self._kernels,
            kind_of(options.recovery),
            (lambda _port: {}) if network is None else network.environment,
            hooks.outside,
            CheckpointFiles(
                self._cwd,
                self._host.store,
                self._walls,
                own=resolved.stay_in is not None,
                label=label,
            ),
            self._branch,
        )

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
        """Start the first kernel, or continue the kernel of an earlier host.

        Args:
            on_input: As for `execute`, for an earlier host's cell that had one.

        Raises:
            LaunchError: No kernel could be started; `InterpreterError` and `PreloadError` are kinds of it.
            StateError: It was started before.
        """
        if self._cells.state != "not started":
            raise StateError(f"{self._name} is {self._cells.state}; make a new one")
        self._cells.state = "running"
        began = time.perf_counter()
        try:
            with self.trace.start(self.isolate):
                await self._start(on_input)
        except BaseException as error:  # also a cancellation: a start that fails leaves nothing
            _log.info("%s could not be started: %r", self._name, error)
            await self.close()
            raise
        took = 1000 * (time.perf_counter() - began)
        ids = {"cellblock.session": self.trace.name}
        _log.info("%s started in %.1f ms, isolate=%s, in %r", self._name, took, self.isolate, self._cwd, extra=ids)

    async def _start(self, on_input: OnInput | None) -> None:
        if self.wanted.tier.sandboxed:
            import_guard.distrust(self._writable)
        if self._branch is not None:
            self._entered = True
            self._branch.enter(self._around.places)
        self._keeper.begin()
        await self._checkpoints.files.recover()
        self.untouched = False
        await self._keeper.go_on(on_input)
        await self._kernels.live()
        self._keeper.settled()
        self._checkpoints.begin()
        await self._install_first()

    async def _install_first(self) -> None:
        """Install the packages from the options, unless they are installed already."""
        if not self._packages or self._branch is not None:
            return
        check_requirements(self._packages)
        code = f"%pip install --quiet {shlex.join(self._packages)}"
        # Not subject to approval: the program that makes the session has asked for it.
        result = await self._cells.run(Cell(code, None, queue_limit=None, silent=True, trusted=True), INSTALL_TIMEOUT)
        if not result.ok:
            said = [line for line in (result.text or "").splitlines() if line.startswith("ERROR: ")]
            why = said[-1].removeprefix("ERROR: ") if said else result.error.evalue if result.error is not None else ""
            raise LaunchError(f"the packages {', '.join(self._packages)} cannot be installed: {why}")

    async def close(self) -> None:
        """Stop whatever runs and end every process of the session.

        It can be repeated. Cancelling the caller does not stop it.
        """
        self._cells.state = "closed"
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        if self.untouched:  # another attempt finds everything as the earlier host has left it
            self._host.forget(self)
            return
        await self._end_programs("its session was closed")
        await self._checkpoints.close()
        await self._cells.close()
        await self._around.close()
        if self._branch is not None and self._entered:
            self._entered = False
            await self._branch.leave()
        self._host.forget(self)
        self._keeper.end()
        self.trace.end()
        _log.info("%s closed", self._name, extra={"cellblock.session": self.trace.name})

    async def _end_programs(self, why: str) -> None:
        if "fs" in self.__dict__:
            await self.fs.close()
        await self._programs.end_all(why)

    async def _launch(self, dead: Kernel | None) -> Kernel:
        """Start a kernel: from the session's initial checkpoint, from the last state of a dead kernel, or a fresh one."""
        if self._start_from is not None:
            kernel = await self._checkpoints.begin_with(self._start_from)
            self._start_from = None
            self._explanations.kernel_begins(afresh=False)
            return kernel
        if dead is not None and (recovered := await self._checkpoints.crashes.recover(dead)) is not None:
            return recovered
        if dead is None and (left := await self._keeper.recover_left()) is not None:
            self._explanations.kernel_begins(afresh=False)
            return left
        check_still_usable(self._cwd)
        self._explanations.kernel_begins()
        notice = None if dead is None else dead.notice(None)
        await self._checkpoints.about_to_begin_anew()
        kernel = await self._host.kernels.launch(replace(self.wanted, notice=notice), self._around.prepare)
        kernel.all_lost = dead is not None
        self._checkpoints.begin_anew(kernel)
        return kernel

    async def _install(self, kernel: RunningKernel, arguments: tuple[str, ...]) -> int:
        host = self._host
        return await self._around.packages.install(kernel, arguments, host.index, host.facts, host.kernels.launch)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def denials(self) -> list[Denial]:
        """The last attempts to reach something on the network that the policy does not allow, oldest first."""
        return [] if self._around.network is None else list(self._around.network.denials)

    @property
    def isolate(self) -> Isolate:
        """How its kernels are isolated."""
        return self.wanted.tier.name

    async def close_egress(self, routes: Sequence[str] = ()) -> None:
        """From now on, let only some hosts be reached, of those that its policy allows: none by default.

        Open connections end. It cannot be taken back, and no branch can be made afterwards, which could reach more.

        Args:
            routes: The hosts, as in `Network.allow`.

        Raises:
            InvalidInputError: A host is wrong. Nothing has changed.
            StateError: The session has branches, which share its network.
            UnsupportedError: It has no sandbox of ours, whose network can be closed.
        """
        self._cells.check_running()
        network = self._around.network
        if network is None:
            raise UnsupportedError(f"the network of a session with isolate={self.isolate!r} cannot be closed by cellblock")
        kernel = await self._kernels.live()
        if kernel.family.branched:
            raise StateError(f"{self._name} has branches, which share its network: close it before they are made")
        kernel.family.seal()
        await network.close_to(routes)

    def watch(self, watcher: SessionWatcher) -> None:
        """Tell a watcher about each cell and each program that ends from now on."""
        self._cells.watchers.append(watcher)
        self._programs.watchers.append(watcher)

    async def wait_for_kernel(self) -> None:
        """Wait for a kernel that takes cells, if the last one has died.

        Raises:
            LaunchError, StateError: As for `execute`.
        """
        await self._kernels.live()

    async def has_kernel(self) -> bool:
        """Return whether its kernel lives. If it is just ending, this waits for the report."""
        kernel = self._kernels.current
        if kernel is None:
            return False
        await kernel.settle()
        return kernel.death is None

    @property
    def tied(self) -> str:
        """Why no other process can continue it now without a loss; empty if one can."""
        kernel, cell = self._kernels.current, self._cells.current
        if kernel is not None and kernel.death is None and not kernel.recording.lasting:
            return f"its variables end with the daemon, as it has launch='spawn' or isolate={self.wanted.tier.name!r}"
        if cell is not None and cell.asked:
            return "its code waits for an answer, a command or an installation"
        return ""

    @property
    def memory(self) -> int:
        """Bytes that its processes use, as last measured; 0 without a sandbox, where memory is not limited."""
        kernel = self._kernels.current
        return 0 if kernel is None or kernel.death is not None else kernel.memory.used

    @property
    def workspace(self) -> str:
        """Its working directory."""
        return self._cwd

    @property
    def files_mode(self) -> FilesMode:
        """``copy`` for a branch with its own files, else ``shared``."""
        return "shared" if self._branch is None else "copy"

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
        return await self._explanations.explained(await self._cells.run(cell, timeout))

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
        cell = Cell(
            code,
            on_input,
            queue_limit=self.wanted.limits.queue if chunks else None,
            followed=True,
            rich=rich,
            silent=silent,
            parent=parent,
            tag=tag,
            on_begin=on_begin,
        )
        async with aclosing(self._cells.stream(cell, timeout)) as events:
            async for event in events:
                yield await self._explanations.explained(event) if isinstance(event, CodeExecutionResult) else event

    def eager(self, *, timeout: float | None = DEFAULT_TIMEOUT, on_input: OnInput | None = None) -> Eager:
        """Run a cell while a model still writes it: each statement as soon as it is complete, and all of them as one cell.

        Tool calls, and connections to hosts, wait until the text is complete. If it turns out to be another one, or is
        withdrawn, the session goes back to before its first statement. A session without exact undo (``recovery="exact"``)
        runs nothing before the end of the text.

        Args:
            timeout: Seconds that the code may run once the text is complete; None for no limit.
            on_input: As for `execute`.

        Returns:
            An async context manager, whose `feed` takes the text, and whose `finish` returns the result.
        """
        from cellblock.host.eager import Eager  # few sessions do it

        check_timeout(timeout)
        return Eager(
            self._cells, self.holding, self.undo, self._execute_whole, ahead=self._exact, timeout=timeout, on_input=on_input
        )

    async def _execute_whole(self, code: str, timeout: float | None) -> CodeExecutionResult:
        return await self.execute(code, timeout=timeout)

    def _checked(self, code: str, timeout: float | None) -> str:
        check_code(code)
        check_timeout(timeout)
        self._cells.check()
        return without_fence(code.removeprefix(_BYTE_ORDER_MARK))

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
        """Stop the running cell and all programs, and continue with a fresh kernel, without variables and imports.

        Raises:
            StateError: The session is not started, or closed.
            LaunchError: No new kernel could be started; the next cell tries again.
        """
        await self._end_programs("its session was reset")
        await self._cells.reset()
        _log.info("%s was reset", self._name)

    @property
    def next_count(self) -> int:
        """The execution number of the next cell."""
        return self._kernels.count + 1

    @property
    def position(self) -> str:
        """The position of the next cell, if it needs no other kernel; else empty. No two cells have the same position."""
        return self._kernels.position

    def history(self, count: int | None = None) -> list[HistoryEntry]:
        """Return the cells that this session ran, oldest first, across resets, with those results that are still kept.

        Args:
            count: How many of the last ones; by default all that are kept (1,000).
        """
        entries = self._cells.past.entries
        return entries if count is None else entries[max(len(entries) - count, 0) :]

    async def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the cells and their output as a notebook for Jupyter, or as a script.

        Args:
            path: The file, which is replaced if it exists: ``.ipynb`` for a notebook, ``.py`` for a script without outputs.

        Returns:
            The file's path.

        Raises:
            InvalidInputError: The path is not valid, or has another extension.
            StoreError: It cannot be written. An existing file is unchanged.
        """
        from cellblock.host import notebook  # few sessions are exported

        return await notebook.export(path, self.history())

    # -- variables, and questions about them ---------------------------------------------------------------------------

    put = _of("_values", Values.put)
    get = _of("_values", Values.get)
    variables = _of("_values", Values.variables)
    complete = _of("_questions", Questions.complete)
    inspect = _of("_questions", Questions.inspect)
    changes = _of("_questions", Questions.changes)

    # -- files ---------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def files(self) -> Files:
        """The files of the session's working directory, for the caller, with the rights of the session."""
        from cellblock.host.files import Files

        return Files(Path(self._cwd), walls=self._walls, on_change=self._checkpoints.automatic.files_changed)

    @functools.cached_property
    def fs(self) -> SessionFiles:
        """Files as the session's own code and programs see them: any path, links followed, with their rights."""
        from cellblock.host.programs.files import SessionFiles

        return SessionFiles(self._programs.helper)

    # -- programs beside the kernel ------------------------------------------------------------------------------------

    exec = _of("_programs", Programs.exec)
    spawn = _of("_programs", Programs.spawn)
    processes = _of("_programs", Programs.processes)
    process = _of("_programs", Programs.process)

    # -- checkpoints and branches --------------------------------------------------------------------------------------

    checkpoint = _traced("checkpoint")(_of("_checkpoints", Checkpoints.checkpoint))

    @property
    def has_packages(self) -> bool:
        """Whether packages were installed in it."""
        return self._around.packages.any

    def checkpoints(self) -> list[Checkpoint]:
        """Return the session's checkpoints, oldest first, including automatic ones."""
        return self._checkpoints.all()

    @property
    def checkpoint_refused(self) -> str:
        """Why the last automatic checkpoint was not made; empty if it was."""
        return self._checkpoints.automatic.skipped

    diff = _of("_checkpoints", Checkpoints.diff)

    async def file_versions(
        self, path: str, checkpoint: Checkpoint | str, until: Checkpoint | str | None = None
    ) -> FileVersions:
        """Return a file of the workspace as a checkpoint holds it, and as it was later.

        Args:
            path: The file, relative to the workspace.
            checkpoint: As for `diff`. Exact sessions keep the files with each of theirs; others with ``files="copy"``.
            until: Another one, for the file in that; None for the file as it is now.

        Raises:
            InvalidInputError: The path is not in the workspace.
            FilesError: There is no such file in either state, or it cannot be read.
            CheckpointError: A checkpoint is gone, belongs to another host, or holds no files.
        """
        from cellblock.host.checkpoints.versions import file_versions  # few programs need it

        return await file_versions(self._checkpoints, self.files, self._cwd, path, checkpoint, until)

    @_traced("restore")
    async def restore(self, checkpoint: Checkpoint | str, *, processes: Processes = "keep") -> Changes:
        """Go back to a checkpoint of this session, or of any session of the same host, even a closed one.

        A running cell is stopped, as by `reset`. If going back fails, the session stays as it is.

        Args:
            checkpoint: A checkpoint, or the name or id of one of this session. It stays.
            processes: Whether programs that run beside the kernel go on (``keep``), or are ended before (``stop``). None is
                ended if the session refuses to go back.

        Returns:
            Which files were brought back, if it was made with ``files="copy"``.

        Raises:
            CheckpointError: It is gone, or belongs to another host.
            SnapshotError: The files cannot be brought back.
            StateError, LaunchError: As for `reset`.
        """
        return await self._checkpoints.restore(checkpoint, self._ending(processes))

    @_traced("undo")
    async def undo(self, count: int = 1, *, partial: bool = False, processes: Processes = "keep") -> Undone:
        """Go back over the last cells: variables, directory, environment, execution count, history, and files.

        Exactly these cells are undone, or none: if something cannot be restored, such as the files of a workspace that is too
        large to keep, nothing is changed (docs/checkpoints.md). What programs beside the kernel have done is not undone.

        Args:
            count: How many cells.
            partial: Whether to go back to the last checkpoint from before these cells, even if that undoes more of them, and
                 to leave files as they are if they cannot be restored. The result says so.
            processes: As for `restore`. The result names those that go on.

        Returns:
            What was undone.

        Raises:
            CheckpointError: There are fewer cells, or they cannot be undone exactly; with `partial`, there is no checkpoint
                from before them.
            SnapshotError: The files cannot be brought back now, as the disk is full, for example. Nothing was changed. With
                `partial`, they stay as they are.
            InvalidInputError, StateError, LaunchError: As for `restore`.
        """
        undone = await self._checkpoints.undo(count, partial=partial, before=self._ending(processes))
        going_on = [f"process {one.id} goes on: {shlex.join(one.command)[:200]}" for one in self.processes() if one.running]
        return replace(undone, outside=[*undone.outside, *going_on]) if going_on else undone

    redo = _traced("redo")(_of("_checkpoints", Checkpoints.redo))
    trash = _of("_checkpoints", Checkpoints.trash)
    restore_trash = _of("_checkpoints", Checkpoints.restore_trash)

    def _ending(self, processes: Processes) -> Before | None:
        """Return what ends the programs before the session goes back, if they are to end."""
        if processes not in ("keep", "stop"):
            raise InvalidInputError(f"processes must be 'keep' or 'stop', not {processes!r}")
        if processes == "keep":
            return None
        return functools.partial(self._programs.end_all, "its session went back to an earlier state")

    @overload
    async def fork(
        self, n: int = ..., *, return_exceptions: Literal[False] = ..., **how: Unpack[ForkKeywords]
    ) -> list[Session]: ...
    @overload
    async def fork(
        self, n: int = ..., *, return_exceptions: Literal[True], **how: Unpack[ForkKeywords]
    ) -> list[Session | BaseException]: ...
    async def fork(
        self,
        n: int = 1,
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
        return_exceptions: bool = False,
    ) -> list[Session] | list[Session | BaseException]:
        """Make sessions that start from this one's present state, independent of it and of each other.

        They share this session's sandbox: its view of the file system, its network, and its limit of processes.

        Args:
            n: How many.
            files: ``copy`` gives each branch the files of the workspace in a directory of its own, which is its working
                directory and is removed with it. With ``shared``, all work in one directory. By default ``copy`` if the
                session has a ``working_dir``, else ``shared``.
            seeds: For each branch, the seed of `random`, and of NumPy's and PyTorch's own generators if they are imported; by
                default a new one. Generators in variables are copied with their state, like all variables.
            same_random_state: Whether these generators continue from this session's state. Not together with `seeds`.
            return_exceptions: Whether a branch that could not be started is returned as its exception. Otherwise the others
                are closed, and the first exception is raised.

        Returns:
            The sessions, started. The caller closes them; at the latest, their host does.

        Raises:
            SnapshotError: The files cannot be copied: they are too many, too large, or there is no space.
            InvalidInputError: ``files="copy"``, and the session has no ``working_dir``; another argument is wrong.
            CheckpointError, LaunchError: As for `checkpoint` and `start`.
        """
        branching = Branching(n, files, seeds, same_random_state, return_exceptions)
        host = self._host
        with self.trace.checkpointing("fork"):
            return await branching.start(
                self, lambda beginning: host.session(start_from=beginning), lambda one: one.start(), lambda one: one.close()
            )

    async def checkpoint_for_branches(self, files: FilesMode | None) -> Checkpoint:
        """Make a checkpoint for `Branching`. No later host has it.

        Args:
            files: How the files of branches are handled; None for the default.

        Raises:
            InvalidInputError: The session has no directory of its own.
            SnapshotError, CheckpointError, StateError, LaunchError: As for `checkpoint`.
        """
        return await self._checkpoints.passing_checkpoint(self._checkpoints.files_of_branches(files))

    async def adopt(self, branch: Session) -> Changes:
        """Continue with the state of another session of the same host, and close that session.

        If it is a branch with its own files, they replace those of this session's workspace, as with `restore`.

        Args:
            branch: The session, usually one that `fork` has made.

        Returns:
            Which files have changed.

        Raises:
            CheckpointError, SnapshotError, StateError, LaunchError: As for `checkpoint` and `restore`. Both sessions stay as
                they are.
            InvalidInputError: It is this session.
        """
        changes = await self.continue_as(branch)
        branch._cells.adopted_by = self._name
        await branch.close()
        return changes

    @_traced("adopt")
    async def continue_as(self, branch: Session) -> Changes:
        """Continue with the state of another session, like `adopt`, but leave that session open.

        Named sessions use it: they remove the other session's record before they close it.
        """
        if branch is self:
            raise InvalidInputError("a session cannot adopt itself")
        branch._cells.check_running()
        return await adopt(self._checkpoints, branch._checkpoints, branch.files_mode)

    # -- saved sessions ------------------------------------------------------------------------------------------------

    async def save(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> SaveReport:
        """Save the session to a file, from which `load` and `Host.load` continue it, on this machine or another one.

        Variables, imports, functions and classes of the session, the code of its cells, its working directory, and environment
        variables that the code has changed are saved (docs/checkpoints.md). The report lists what cannot be saved. The
        session's code does the pickling, in its sandbox.

        Args:
            path: The file. An existing one is replaced, but only when the new one is complete.
            workspace: Whether to save the files of the workspace too.
            timeout: Time limit for pickling, in seconds.

        Raises:
            InvalidInputError: The path is not valid.
            StoreError: It cannot be written. An existing file is unchanged.
            ExecutionTimeoutError: Pickling took too long.
            FilesError: A file of the workspace cannot be read.
            StateError, LaunchError, KernelDiedError, ProtocolError: As for `execute`, but raised.
        """
        check_timeout(timeout)
        return await self.saving.save(path, workspace=workspace, timeout=timeout)

    async def load(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> LoadReport:
        """Continue a session that was saved to a file. This session's own state is lost: it gets a fresh kernel.

        The report lists what cannot be restored, such as a variable of a library that is not installed here. The file may come
        from anywhere: its code runs only in this session's sandbox, like a cell.

        Args:
            path: The file.
            workspace: Whether to unpack the saved files. Files of the same names are moved to the trash.
            timeout: Time limit for loading, in seconds.

        Raises:
            InvalidInputError: It is not a saved session, or is damaged. This session is unchanged.
            StoreError: It cannot be read.
            ExecutionTimeoutError: Loading took too long.
            FilesError: The files cannot be unpacked.
            StateError, LaunchError, KernelDiedError, ProtocolError: As for `execute`, but raised.
        """
        check_timeout(timeout)
        return await self.saving.load(path, workspace=workspace, timeout=timeout)

    @property
    def loaded(self) -> LoadReport | None:
        """The report of the last saved session that was loaded (`Host.load`, `load`); None if none was."""
        return self.saving.loaded

    @functools.cached_property
    def saving(self) -> Saving:
        """Saves the session, and loads others into it: what `save` and `load` use, and services that save while cells run."""
        from cellblock.host.saving import Saving  # few sessions are saved

        return Saving(self._cells, self._checkpoints, self.files, self._cwd, self._room)

    @property
    def _room(self) -> int:
        """Maximum bytes of a value that is moved in or out."""
        return min(self.wanted.limits.media, self.wanted.limits.values)
