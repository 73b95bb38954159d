"""Sessions: cells run in order, and a new kernel replaces a dead one."""

from __future__ import annotations

import asyncio
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
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeAlias, TypeVar, Unpack, overload

from cellblock.common.config import Isolate
from cellblock.common.environments import PackageSet
from cellblock.common.timeouts import check_timeout
from cellblock.errors import InvalidInputError, LaunchError, StateError, UnsupportedError, shown
from cellblock.host import import_guard
from cellblock.host.checkpoints import undoing
from cellblock.host.checkpoints.checkpoint import Origin, Resuming
from cellblock.host.checkpoints.checkpoints import Before, Checkpoints
from cellblock.host.checkpoints.forking import Branching, adopt
from cellblock.host.checkpoints.workspace_snapshots import CheckpointFiles
from cellblock.host.checks import DEFAULT_TIMEOUT, INSTALL_TIMEOUT, check_requirements
from cellblock.host.closing import AsyncOnly, Closing
from cellblock.host.environment import check_still_usable
from cellblock.host.exchange import Values
from cellblock.host.explanations import Explanations
from cellblock.host.holding import Holding
from cellblock.host.kernels.cell import Cell, Event, OnInput, check_code, without_fence
from cellblock.host.kernels.cells import Cells, SessionWatcher
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.kernels.kernel_slot import KernelSlot
from cellblock.host.kernels.questions import Questions
from cellblock.host.network_changes import NetworkChanges
from cellblock.host.options import Exact, SessionHooks, SessionOptions, kind_of
from cellblock.host.ports import Ports
from cellblock.host.programs.background_programs import Programs
from cellblock.host.session_surroundings import RunningParts, SessionSurroundings, Workspace, limits_of
from cellblock.host.survival.keeper import SessionParts
from cellblock.host.telemetry import SessionTrace
from cellblock.model import CodeExecutionResult, HistoryEntry
from cellblock.model.checkpoints import Changes, FilesMode, FileVersions, ForkKeywords, Undone
from cellblock.model.network import SessionNetwork
from cellblock.model.programs import Processes

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Beginning, Checkpoint
    from cellblock.host.clones.clone import Clone
    from cellblock.host.eager import Eager
    from cellblock.host.files import Files
    from cellblock.host.launch.kernel_spec import DeathNotice, KernelSpec
    from cellblock.host.programs.program_files import SessionFiles
    from cellblock.host.saving import Saving
    from cellblock.host.session_host import SessionHost
    from cellblock.host.survival.remains import SessionRemains
    from cellblock.model.clones import Applied, CloneChanges, Fetched
    from cellblock.model.overview import RequestRecord, SecretRecord
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.walls.egress.rules import Denial
    from cellblock.walls.keys.session_keys import SessionKeys

_P = ParamSpec("_P")
_T = TypeVar("_T")
Method: TypeAlias = Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]
_log = logging.getLogger("cellblock.sessions")
_BYTE_ORDER_MARK = "\ufeff"
"""Editors write it at the beginning of files, where Python accepts it; in a string it is a syntax error."""


def _packages_of(options: SessionOptions) -> PackageSet | tuple[str, ...]:
    """Return the packages that the options name."""
    environment = options.environment
    assert environment is None or isinstance(environment, PackageSet)  # `Host.session` has found the name
    return tuple(options.packages) if environment is None else environment


def _of(part: str, method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method that delegates to a part of the session, with the same signature and documentation."""

    def call(self: Any, /, *args: _P.args, **keywords: _P.kwargs) -> _T:
        return method(getattr(self, part), *args, **keywords)

    return functools.update_wrapper(call, method)


def _traced(name: str) -> Callable[[Method[_P, _T]], Method[_P, _T]]:
    """Return a decorator that runs a checkpoint method as a traced step with this name."""

    def decorate(method: Method[_P, _T]) -> Method[_P, _T]:
        async def call(self: Any, /, *args: _P.args, **keywords: _P.kwargs) -> _T:
            with self.trace.checkpointing(name):
                return await method(self, *args, **keywords)

        return functools.update_wrapper(call, method)

    return decorate


class Session(AsyncOnly):
    """A stateful IPython session. Cells run one at a time, in request order.

    Create sessions with `Host.session`. A session is an async context manager::

        async with Host() as host, host.session() as session:
            result = await session.execute("1 + 1")

    Attributes:
        wanted: Specification of the session's kernels.
        trace: OpenTelemetry spans of the session.
        cells: The cells of the session, and the reader of their output.
        holding: Blocks tool calls and connections while `eager` runs ahead of the model.
        succession: State transfer from an earlier host and to a later one.
        untouched: Whether the session has yet to take over from an earlier host. Closing it then ends nothing.
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
        self._name = hooks.title(number)
        self._host = host
        self._place = place = Workspace.find(host, number, options, hooks, remains, start_from)
        self._packages = _packages_of(options)
        # An earlier host, or the checkpoint's session, has chosen the versions.
        self._chooses_packages = start_from is None and remains is None
        self._exact = isinstance(kind_of(options.recovery), Exact)
        self._start_from = start_from
        self._entered = False
        self.untouched = remains is not None
        self.holding, self.trace = Holding(), SessionTrace(self._name)
        self._kernels = kernels = KernelSlot(self._launch)
        self.cells = cells = Cells(
            self._name, kernels, hooks, self.trace, host.check_usable, place.resolved.images_dir, limits_of(options).history
        )
        running = RunningParts(kernels, cells, self.holding, self.trace)
        self._around = around = SessionSurroundings(host, number, options, hooks, place, running, remains)
        self.wanted = around.kernel_spec(options)
        self._checkpoints = self._make_checkpoints(options, label)
        self._explanations = Explanations(place.directory, self.wanted.tier, self.wanted.policy)
        self._network_changes = NetworkChanges(self._name, self.wanted.tier, around.network, cells, hooks.network_changed)
        self._ports = Ports(self._name, self.wanted.tier, kernels, cells)
        self._programs = Programs(self._name, kernels, cells, self.trace)
        self._questions = Questions(cells)
        self._values = Values(self._name, cells, self._room)
        parts = SessionParts(
            number,
            around.place,
            around.env,
            place.branch,
            self.wanted,
            cells,
            kernels,
            self._checkpoints,
            host.kernels.recover,
            around.listeners,
            around.keys,
        )
        self.succession = host.keeper.session(parts, label, remains)
        self._closing = Closing()

    @classmethod
    def create(
        cls,
        host: SessionHost,
        options: SessionOptions,
        hooks: SessionHooks,
        *,
        label: str = "",
        remains: SessionRemains | None = None,
        start_from: Beginning | None = None,
    ) -> Session:
        """Create a session of a host, which `start` starts. For the arguments, see `Host.session`."""
        number = host.kernels.next_number() if remains is None else remains.number
        session = cls(host, number, options, hooks, label=label, remains=remains, start_from=start_from)
        host.add(session, session.wanted)
        return session

    def _make_checkpoints(self, options: SessionOptions, label: str) -> Checkpoints:
        around, place = self._around, self._place
        files = CheckpointFiles(
            place.directory,
            self._host.store,
            place.walls,
            own=place.resolved.stay_in is not None,
            label=label,
            repository=place.clone is not None,
            own_sandbox=self._start_from is None and not self.untouched,
        )
        kernels = self._host.kernels
        resuming = Resuming(
            kernels.resume, kernels.can_double, self.wanted, around.proxies, around.packages.go_to, around.listeners
        )
        return Checkpoints(
            Origin(self._host, options, place.resolved, self.wanted, place.branch, place.clone),
            self.cells,
            self._kernels,
            files,
            resuming,
            self._host.checkpoint_budget,
        )

    async def __aenter__(self) -> Self:
        if self.cells.state != "running":  # `Host.load` has started it
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        name, directory = self._name.removeprefix("session "), self._place.directory
        return f"<Session {name} {self.cells.state}, isolate={self.isolate}, in {directory!r}>"

    async def start(self, *, on_input: OnInput | None = None) -> None:
        """Start the first kernel, or continue an earlier host's kernel.

        Args:
            on_input: Input handler for an earlier host's running cell, as for `execute`.

        Raises:
            LaunchError: No kernel could be started. Subclasses: `InterpreterError`, `PreloadError`.
            StateError: The session was started before.
        """
        if self.cells.state != "not started":
            raise StateError(f"{self._name} is {self.cells.state}; make a new one")
        self.cells.state = "running"
        began = time.perf_counter()
        try:
            with self.trace.start(self.isolate):
                await self._start(on_input)
        except BaseException as error:  # includes cancellation: a failed start leaves nothing behind
            _log.info("%s could not be started: %r", self._name, error)
            await self.close()
            raise
        took = 1000 * (time.perf_counter() - began)
        ids = {"cellblock.session": self.trace.name}
        _log.info("%s started in %.1f ms, isolate=%s, in %r", self._name, took, self.isolate, self._place.directory, extra=ids)

    async def _start(self, on_input: OnInput | None) -> None:
        await self._around.read_secrets()
        if self.wanted.tier.sandboxed:
            import_guard.distrust(self._place.resolved.writable)
        if self._place.branch is not None:
            self._entered = True
            self._place.branch.enter(self._around.places)
        self.succession.begin()
        await self._checkpoints.files.recover(self.succession.left_kernel)
        if self._place.clone is not None:
            await self._place.clone.create(self._host.environments.sandboxes, self.wanted)
        self.untouched = False
        await self.succession.go_on(on_input)
        await self._kernels.live()
        self.succession.settled()
        self._checkpoints.begin()
        await self._install_under_srt()

    async def _with_packages(self) -> KernelSpec:
        """Return the specification of a fresh kernel, with the packages from the options.

        Raises:
            LaunchError: They cannot be installed, or may not be preloaded.
        """
        if self._packages and not self.wanted.tier.wrapped:
            if self._around.packages.environment is None:
                try:
                    if not isinstance(self._packages, PackageSet):
                        check_requirements(self._packages)
                    async with asyncio.timeout(INSTALL_TIMEOUT):
                        await self._around.packages.choose(
                            self._packages, self._host.environments, self.wanted, renew=self._chooses_packages
                        )
                except TimeoutError as error:
                    raise self._cannot_install(f"it took more than {INSTALL_TIMEOUT:g} s") from error
                except InvalidInputError as error:
                    raise self._cannot_install(str(error)) from error
            given = self._packages if isinstance(self._packages, PackageSet) else None
            return self._around.with_environment(self.wanted, given)
        return self.wanted

    def _cannot_install(self, why: str) -> LaunchError:
        given = self._packages
        title = given.title if isinstance(given, PackageSet) else ", ".join(given)
        return LaunchError(f"{self._name} cannot start with the packages {title}: {why}")

    async def _install_under_srt(self) -> None:
        """Install the packages from the options into srt's directory, which exists only once a kernel runs."""
        given = self._packages
        if not given or isinstance(given, PackageSet) or not self._chooses_packages or not self.wanted.tier.wrapped:
            return
        check_requirements(given)
        code = f"%pip install --quiet {shlex.join(given)}"
        # Needs no approval: the program that creates the session asked for it.
        result = await self.cells.run(Cell(code, None, queue_limit=None, silent=True, trusted=True), INSTALL_TIMEOUT)
        if not result.ok:
            raise self._cannot_install("" if result.error is None else result.error.evalue)

    async def close(self) -> None:
        """Stop all running code and end every process of the session.

        The operation is idempotent. Cancelling the caller does not stop it.
        """
        self.cells.state = "closed"
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        if self.untouched:  # the next attempt must find everything as the earlier host left it
            self._host.forget(self)
            return
        await self._end_programs("its session was closed")
        await self._checkpoints.close()
        await self.cells.close()
        await self._around.close()
        if self._place.branch is not None and self._entered:
            self._entered = False
            await self._place.branch.leave()
        self._host.forget(self)
        self.succession.end()
        self.trace.end()
        _log.info("%s closed", self._name, extra={"cellblock.session": self.trace.name})

    async def _end_programs(self, why: str) -> None:
        if "fs" in self.__dict__:
            await self.fs.close()
        await self._programs.end_all(why)

    async def _launch(self, dead: Kernel | None) -> Kernel:
        """Start a kernel: from the initial checkpoint, from a dead kernel's last state, or a fresh one."""
        if self._start_from is not None:
            kernel = await self._checkpoints.begin_with(self._start_from)
            self._start_from = None
            self._explanations.kernel_begins(afresh=False)
            return kernel
        if dead is not None and (recovered := await self._checkpoints.crashes.recover(dead)) is not None:
            return recovered
        if dead is None and (left := await self.succession.recover_left()) is not None:
            self._explanations.kernel_begins(afresh=False)
            return left
        check_still_usable(self._place.directory)
        await self._checkpoints.about_to_begin_anew()
        kernel = await self._launch_fresh(None if dead is None else dead.notice(None))
        kernel.all_lost = dead is not None
        self._checkpoints.begin_anew()
        return kernel

    async def _launch_fresh(self, notice: DeathNotice | None = None) -> Kernel:
        """Start a fresh kernel, which is not the session's yet."""
        check_still_usable(self._place.directory)
        self._explanations.kernel_begins()
        wanted = await self._around.devices.give(await self._with_packages())
        return await self._host.kernels.launch(replace(wanted, notice=notice), self._around.prepare)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def denials(self) -> list[Denial]:
        """The last network attempts that the policy denied, oldest first."""
        return [] if self._around.network is None else list(self._around.network.denials)

    @property
    def requests(self) -> list[RequestRecord]:
        """The last requests to hosts with secrets or request lines, oldest first, without queries, headers and bodies."""
        return [] if self._around.keys is None else list(self._around.keys.requests)

    def secrets(self) -> list[SecretRecord]:
        """Return the secrets of the session without their values, except removed ones."""
        return [] if self._around.keys is None else self._around.keys.records

    @property
    def removed_secrets(self) -> frozenset[str]:
        """The names of the secrets that were removed from the session."""
        return frozenset() if self._around.keys is None else self._around.keys.removed

    async def refresh_secret(self, name: str) -> None:
        """Read the value of a secret again from its source, for the session and its branches. The placeholder stays.

        Running requests keep the previous value.

        Raises:
            InvalidInputError: The session has no such secret, or its value cannot be read. Nothing has changed.
        """
        await self._keys(name).refresh(name)

    async def remove_secret(self, name: str) -> None:
        """Remove a secret from the session and its branches. Requests with its placeholder are refused from now on.

        Undo and restore do not reverse this. Running requests are not affected.

        Raises:
            InvalidInputError: The session has no such secret.
        """
        await self._keys(name).remove(name)

    def _keys(self, name: str) -> SessionKeys:
        self.cells.check_running()
        if self._around.keys is None:
            raise InvalidInputError(f"{self._name} has no secret {shown(name)}: it was created without secrets")
        return self._around.keys

    @property
    def isolate(self) -> Isolate:
        """How the session's kernels are isolated."""
        return self.wanted.tier.name

    @property
    def network(self) -> SessionNetwork:
        """The hosts that the session and its branches can reach now.

        Raises:
            UnsupportedError: cellblock does not enforce the session's network.
        """
        return self._network_changes.shown

    change_network = _of("_network_changes", NetworkChanges.change)

    async def close_egress(self, routes: Sequence[str] = ()) -> None:
        """Restrict the network to some of the hosts that the policy allows (by default none).

        Open connections end. The restriction is permanent, and the session can no longer be forked.

        Args:
            routes: The remaining hosts, as in `Network.allow`.

        Raises:
            InvalidInputError: A host is invalid. Nothing has changed.
            StateError: The session has branches, which share its network.
            UnsupportedError: The session is not in a cellblock sandbox.
        """
        self.cells.check_running()
        network = self._around.network
        if network is None:
            raise UnsupportedError(f"the network of a session with isolate={self.isolate!r} cannot be closed by cellblock")
        kernel = await self._kernels.live()
        if kernel.family.branched:
            raise StateError(f"{self._name} has branches, which share its network: close it before you make branches")
        kernel.family.seal()
        if network.live is not None:
            await network.live.close_to(routes)

    def watch(self, watcher: SessionWatcher) -> None:
        """Notify a watcher of each later cell, and of each later program that ends."""
        self.cells.watchers.append(watcher)
        self._programs.watchers.append(watcher)

    async def wait_for_kernel(self) -> None:
        """Wait for a kernel that accepts cells, if the last one died.

        Raises:
            LaunchError, StateError: As for `execute`.
        """
        await self._kernels.live()

    async def has_kernel(self) -> bool:
        """Return whether the kernel is alive. If the kernel is ending, wait for its exit status."""
        kernel = self._kernels.current
        if kernel is None:
            return False
        await kernel.settle()
        return kernel.death is None

    @property
    def tied(self) -> str:
        """Why another process cannot continue the session now without loss; empty if it can."""
        kernel, cell = self._kernels.current, self.cells.current
        if kernel is not None and kernel.death is None and not kernel.recording.lasting:
            return f"its variables end with the daemon, as it has launch='spawn' or isolate={self.wanted.tier.name!r}"
        if cell is not None and cell.asked:
            return "its code waits for an answer, a command or an installation"
        return ""

    @property
    def memory(self) -> int:
        """Memory of the session's processes in bytes, as last measured. 0 without a sandbox."""
        kernel = self._kernels.current
        return 0 if kernel is None or kernel.death is not None else kernel.memory.used

    @property
    def workspace(self) -> str:
        """The session's working directory."""
        return self._place.directory

    @property
    def files_mode(self) -> FilesMode:
        """``copy`` for a branch with its own files, else ``shared``."""
        return "shared" if self._place.branch is None else "copy"

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
        """Run a cell and return its result, whether it succeeds or fails.

        The code has stopped when this returns. Cancelling the awaiting task also stops the code.

        Args:
            code: IPython code, including magics, ``!cmd`` and top-level ``await``.
            timeout: Time limit of the cell in seconds, from its start; None for no limit.
            silent: As for `stream`.
            parent: As for `stream`.
            on_input: Answers `input()`: takes the prompt and returns the line. Without a handler, `input()` raises an error in
                the cell.
            tag: The program's label for this execution. If the next host continues the cell, `resumed` returns the label.
            on_begin: Called with the cell's `position` before the cell is sent to a kernel. If the cell must wait for a
                kernel, it is first called with an empty text. An exception from it is raised here, and the cell does not run.
            on_notice: Receives notices for the reader (`Notice`), for a cell without a stream.

        Raises:
            InvalidInputError: The code is invalid, or the timeout is not a positive number.
            StateError: The session is not started, or closed.
            LaunchError: The last kernel died and no new kernel could be started.
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
        result = await self.cells.run(cell, timeout)
        return result if result.error is None else await self._explanations.explained(result, self.files)

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
        """Run a cell and yield its output as it arrives, then its result.

        A slow consumer slows the cell down (backpressure). Closing the generator stops the cell.

        Args:
            code: As for `execute`.
            timeout: As for `execute`.
            chunks: Whether to yield `CodeExecutionChunk`s, or only the result.
            rich: Whether to yield displayed values as `OutputItem`s with all MIME types, and events when output is cleared.
            silent: Whether the cell has no execution number and no history entry.
            parent: The id of the requesting Jupyter message, if any. Widget messages (`wire.messages.Comm`) are then yielded,
                and prompts and answers of `input()` are not shown.
            on_input: As for `execute`.
            tag: As for `execute`.
            on_begin: As for `execute`.

        Yields:
            Output chunks and notices, then the `CodeExecutionResult`, which contains all output.

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
        async with aclosing(self.cells.stream(cell, timeout)) as events:
            async for event in events:
                if isinstance(event, CodeExecutionResult) and event.error is not None:
                    event = await self._explanations.explained(event, self.files)
                yield event

    def eager(self, *, timeout: float | None = DEFAULT_TIMEOUT, on_input: OnInput | None = None) -> Eager:
        """Run a cell while a model is still writing it, one complete statement at a time.

        Tool calls and network connections wait until the text is complete. If the text changes or is withdrawn, the session is
        rolled back to before the first statement. Only a session with exact undo (``recovery="exact"``) runs statements early;
        others wait for the complete text.

        Args:
            timeout: Time limit in seconds after the text is complete; None for no limit.
            on_input: As for `execute`.

        Returns:
            An async context manager: `feed` takes text, `finish` returns the result.
        """
        from cellblock.host.eager import Eager  # rarely used

        check_timeout(timeout)
        return Eager(
            self.cells, self.holding, self.undo, self._execute_whole, ahead=self._exact, timeout=timeout, on_input=on_input
        )

    async def _execute_whole(self, code: str, timeout: float | None) -> CodeExecutionResult:
        return await self.execute(code, timeout=timeout)

    def _checked(self, code: str, timeout: float | None) -> str:
        check_code(code)
        check_timeout(timeout)
        self.cells.check()
        return without_fence(code.removeprefix(_BYTE_ORDER_MARK))

    async def install(self, *requirements: str, timeout: float | None = 600.0) -> CodeExecutionResult:
        """Install packages for this session, like ``%pip install`` in a cell.

        The packages come from the index that pip is configured for in this program, or from the store of what was installed
        before. The code cannot change them. They can be imported at once, and are removed with the session. They survive
        `reset`, unless each kernel has its own srt (``launch="spawn"``).

        Args:
            requirements: Requirements such as ``"polars>=1"``, and options (docs/sandbox.md).
            timeout: Time limit in seconds.

        Returns:
            The names of installed packages as output, or an error.

        Raises:
            InvalidInputError: There are no requirements.
            StateError, LaunchError: As for `execute`.
        """
        check_requirements(requirements)
        return await self.execute(f"%pip install {shlex.join(requirements)}", timeout=timeout)

    async def interrupt(self) -> bool:
        """Stop the running cell. Its result has the status ``interrupted``.

        Variables are kept if the code stops in time.

        Returns:
            Whether a cell was running. The cell has stopped.
        """
        return await self.cells.stop()

    async def reset(self) -> None:
        """Stop the running cell and all programs, and continue with a fresh kernel without variables and imports.

        Raises:
            StateError: The session is not started, or closed.
            LaunchError: No new kernel could be started. The next cell tries again.
        """
        await self._end_programs("its session was reset")
        await self.cells.reset()
        _log.info("%s was reset", self._name)

    @property
    def next_count(self) -> int:
        """The execution number of the next cell."""
        return self._kernels.count + 1

    @property
    def position(self) -> str:
        """The unique position of the next cell; empty if that cell needs another kernel."""
        return self._kernels.position

    def history(self, count: int | None = None) -> list[HistoryEntry]:
        """Return the cells that this session ran, oldest first, across resets. Old entries lack their results.

        Args:
            count: Number of latest cells; by default all in the history (1,000).
        """
        entries = self.cells.past.entries
        return entries if count is None else entries[max(len(entries) - count, 0) :]

    async def export(self, path: str | os.PathLike[str]) -> Path:
        """Export the cells and their output as a Jupyter notebook, or the code as a script.

        Args:
            path: The file: ``.ipynb`` for a notebook, ``.py`` for a script without outputs. An existing file is replaced.

        Returns:
            The file's path.

        Raises:
            InvalidInputError: The path is invalid, or has another extension.
            StoreError: The file cannot be written. An existing file is unchanged.
        """
        from cellblock.host import notebook  # rarely used

        return await notebook.export(path, self.history())

    # -- variables and questions ---------------------------------------------------------------------------------------

    put = _of("_values", Values.put)
    get = _of("_values", Values.get)
    variables = _of("_values", Values.variables)
    complete = _of("_questions", Questions.complete)
    inspect = _of("_questions", Questions.inspect)
    changes = _of("_questions", Questions.changes)

    # -- files ---------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def files(self) -> Files:
        """The files of the session's working directory, with the session's permissions."""
        from cellblock.host.files import Files

        alias = "" if self._place.clone is None else self._place.clone.shown
        changed = self._checkpoints.automatic.files_changed
        return Files(Path(self._place.directory), walls=self._place.walls, on_change=changed, alias=alias)

    @functools.cached_property
    def fs(self) -> SessionFiles:
        """Files as the session's code and programs see them: any path, with links followed and the session's permissions."""
        from cellblock.host.programs.program_files import SessionFiles

        return SessionFiles(self._programs.helper)

    # -- background programs -------------------------------------------------------------------------------------------

    exec = _of("_programs", Programs.exec)
    spawn = _of("_programs", Programs.spawn)
    processes = _of("_programs", Programs.processes)
    process = _of("_programs", Programs.process)

    # -- servers of its code -------------------------------------------------------------------------------------------

    connect = _of("_ports", Ports.connect)
    ports = _of("_ports", Ports.ports)

    # -- checkpoints and branches --------------------------------------------------------------------------------------

    checkpoint = _traced("checkpoint")(_of("_checkpoints", Checkpoints.checkpoint))

    @property
    def has_packages(self) -> bool:
        """Whether packages were installed in the session."""
        return self._around.packages.any

    def checkpoints(self) -> list[Checkpoint]:
        """Return the session's checkpoints, including automatic ones, oldest first."""
        return self._checkpoints.all()

    @property
    def checkpoint_refused(self) -> str:
        """Why the last automatic checkpoint failed; empty if it succeeded."""
        return self._checkpoints.automatic.skipped

    diff = _of("_checkpoints", Checkpoints.diff)

    async def file_versions(
        self, path: str, checkpoint: Checkpoint | str, until: Checkpoint | str | None = None
    ) -> FileVersions:
        """Return a workspace file from a checkpoint, and from a later one or now.

        Args:
            path: The file, relative to the workspace.
            checkpoint: As for `diff`. Exact sessions include files in every checkpoint, others only with ``files="copy"``.
            until: A later checkpoint; None for the current file.

        Raises:
            InvalidInputError: The path is outside the workspace.
            FilesError: The file is missing from both states, or cannot be read.
            CheckpointError: A checkpoint was dropped, belongs to another host, or has no files.
        """
        from cellblock.host.checkpoints.versions import file_versions  # rarely used

        return await file_versions(self._checkpoints, self.files, self._place.directory, path, checkpoint, until)

    @_traced("restore")
    async def restore(self, checkpoint: Checkpoint | str, *, processes: Processes = "keep") -> Changes:
        """Restore a checkpoint of this session or of any session of the same host, open or closed.

        A running cell is stopped, as by `reset`. If the restore fails, the session is unchanged.

        Args:
            checkpoint: A checkpoint, or the name or id of one of this session. It is not dropped.
            processes: ``keep`` leaves background programs running; ``stop`` ends them first. A restore that is refused ends
                none.

        Returns:
            The restored files, for a checkpoint with ``files="copy"``.

        Raises:
            CheckpointError: The checkpoint was dropped, or belongs to another host.
            SnapshotError: The files cannot be restored.
            StateError, LaunchError: As for `reset`.
        """
        return await self._checkpoints.restore(checkpoint, self._ending(processes))

    @_traced("undo")
    async def undo(self, count: int = 1, *, partial: bool = False, processes: Processes = "keep") -> Undone:
        """Undo the last cells: variables, directory, environment, execution count, history and files.

        Either exactly these cells are undone, or none. If something cannot be restored, such as a workspace above the snapshot
        limit, nothing is changed (docs/checkpoints.md). The effects of background programs are not undone.

        Args:
            count: Number of cells.
            partial: Whether to fall back to the last checkpoint before these cells, even if more cells are undone, and to
                leave unrestorable files unchanged. The result reports both.
            processes: As for `restore`. The result names the programs that still run.

        Returns:
            What was undone.

        Raises:
            CheckpointError: There are fewer cells, or they cannot be undone exactly. With `partial`: no checkpoint precedes
                them.
            SnapshotError: The files cannot be restored now, for example because the disk is full. Nothing was changed. Not
                raised with `partial`: the files are left unchanged.
            InvalidInputError, StateError, LaunchError: As for `restore`.
        """
        undone = await undoing.undo(self._checkpoints, count, partial=partial, before=self._ending(processes))
        going_on = [
            f"process {one.id} keeps running: {shlex.join(one.command)[:200]}" for one in self.processes() if one.running
        ]
        return replace(undone, outside=[*undone.outside, *going_on]) if going_on else undone

    redo = _traced("redo")(_of("_checkpoints", undoing.redo))
    trash = _of("_checkpoints", Checkpoints.trash)
    restore_trash = _of("_checkpoints", Checkpoints.restore_trash)

    def _ending(self, processes: Processes) -> Before | None:
        """Return a function that ends the background programs before a restore, or None to leave them running."""
        if processes not in ("keep", "stop"):
            raise InvalidInputError(f"processes must be 'keep' or 'stop', not {processes!r}")
        if processes == "keep":
            return None
        return functools.partial(self._programs.end_all, "its session restored an earlier state")

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
        """Create sessions that start from this session's current state. All are independent of each other.

        They share this session's sandbox: its file system view, network and process limit.

        Args:
            n: Number of branches.
            files: ``copy`` gives each branch its own copy of the workspace as working directory, removed with the branch.
                ``shared`` uses one directory for all. Default: ``copy`` if the session has a ``working_dir``, else ``shared``.
            seeds: For each branch, the seed of the global generators of `random`, and of NumPy and PyTorch if imported.
                Default: a new seed. Generators in variables are copied with their state.
            same_random_state: Whether the global generators continue from this session's state. Excludes `seeds`.
            return_exceptions: Whether to return an exception for each branch that fails to start. Otherwise all branches are
                closed, and the first exception is raised.

        Returns:
            The started sessions. The caller closes them; otherwise, the host does when it closes.

        Raises:
            SnapshotError: The files cannot be copied: too many, too large, or no space.
            InvalidInputError: ``files="copy"`` without a ``working_dir``, or another argument is invalid.
            StateError: The session has a GPU, or works in a clone and `files` is ``shared``.
            CheckpointError, LaunchError: As for `checkpoint` and `start`.
        """
        branching = Branching(n, files, seeds, same_random_state, return_exceptions)
        with self.trace.checkpointing("fork"):
            return await branching.start(
                self.checkpoint_for_branches,
                self._branch,
                Session.start,
                Session.close,
            )

    def _branch(self, beginning: Beginning) -> Session:
        """Create a session from a checkpoint of this one."""
        self._host.check_usable()
        return Session.create(self._host, beginning.checkpoint.moment.origin.options, SessionHooks(), start_from=beginning)

    async def checkpoint_for_branches(self, files: FilesMode | None) -> Checkpoint:
        """Create a checkpoint for `Branching`, which later hosts do not receive.

        Args:
            files: How the files of branches are handled; None for the default.

        Raises:
            InvalidInputError: The session has no directory of its own.
            SnapshotError, CheckpointError, StateError, LaunchError: As for `checkpoint`.
        """
        if self._place.clone is not None and files == "shared":
            raise StateError(f"{self._name} works in a clone, and each branch needs its own copy: omit files='shared'")
        return await self._checkpoints.passing_checkpoint(self._checkpoints.files_of_branches(files))

    async def adopt(self, branch: Session) -> Changes:
        """Continue from another session's state (usually a branch) and close that session.

        The files of a branch with its own files replace this session's workspace, as with `restore`.

        Args:
            branch: A session of the same host, usually from `fork`.

        Returns:
            The changed files.

        Raises:
            CheckpointError, SnapshotError, StateError, LaunchError: As for `checkpoint` and `restore`. Both sessions are
                unchanged.
            InvalidInputError: The branch is this session.
        """
        changes = await self.continue_as(branch)
        branch.cells.adopted_by = self._name
        await branch.close()
        return changes

    @_traced("adopt")
    async def continue_as(self, branch: Session) -> Changes:
        """Continue from another session's state like `adopt`, but leave that session open.

        Named sessions remove the other session's record before they close it.
        """
        if branch is self:
            raise InvalidInputError("a session cannot adopt itself")
        branch.cells.check_running()
        changes = await adopt(self._checkpoints, branch._checkpoints, branch.files_mode)
        clone, other = self._place.clone, branch._place.clone
        if clone is not None and other is not None and branch.files_mode == "copy":
            await clone.begin_with(await other.base())  # one of them may have loaded another clone
        return changes

    # -- clones --------------------------------------------------------------------------------------------------------

    async def clone_diff(self) -> CloneChanges:
        """Return the changes in the session's clone, committed or not, since it was made.

        Raises:
            StateError: The session does not work in a clone, or the changes cannot be read.
            InvalidInputError, LaunchError: The changes are invalid or too large, or cannot be read.
        """
        return await self._clone.diff()

    async def clone_fetch(self) -> Fetched:
        """Fetch the commits of the session's clone into the project's repository, as ``refs/remotes/cellblock/NAME``.

        Raises:
            InvalidInputError, StateError, LaunchError: As for `clone_diff`. Nothing was fetched.
        """
        return await self._clone.fetch()

    async def clone_apply(self, *, three_way: bool = False, allow_protected: bool = False) -> Applied:
        """Apply the changes of the session's clone, committed or not, to the working copy of the project.

        Args:
            three_way: Whether to merge them if they do not fit, which can leave conflicts.
            allow_protected: Whether to write names that your programs obey, such as ``.envrc``, and links that lead elsewhere.

        Raises:
            AccessError: The changes contain protected names. Nothing was changed.
            ConflictError: The changes do not fit the working copy. Nothing was changed.
            InvalidInputError, StateError, LaunchError: As for `clone_diff`. Nothing was changed.
        """
        return await self._clone.apply(three_way=three_way, allow_protected=allow_protected)

    @property
    def clone_is_new(self) -> bool:
        """Whether the session works in a clone that was made to load a saved one."""
        return self._place.clone is not None and self._place.clone.unused

    @property
    def _clone(self) -> Clone:
        self.cells.check_running()
        if self._place.clone is None:
            raise StateError(f"{self._name} does not work in a clone: create it with workspace='clone' (--clone)")
        return self._place.clone

    # -- saved sessions ------------------------------------------------------------------------------------------------

    async def save(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> SaveReport:
        """Save the session to a file. `load` and `Host.load` continue it, on any machine.

        The file contains variables, imports, functions, classes, the code of cells, the working directory, and environment
        variables that the code changed (docs/checkpoints.md). The report lists what cannot be saved. The session's code does
        the pickling, in its sandbox.

        Args:
            path: The file. An existing file is replaced atomically.
            workspace: Whether to include the workspace files.
            timeout: Time limit for pickling, in seconds.

        Raises:
            InvalidInputError: The path is invalid.
            StoreError: The file cannot be written. An existing file is unchanged.
            ExecutionTimeoutError: Pickling exceeded the time limit.
            FilesError: A workspace file cannot be read.
            StateError, LaunchError, KernelDiedError, ProtocolError: As for `execute`, but raised.
        """
        check_timeout(timeout)
        return await self.saving.save(path, workspace=workspace, timeout=timeout)

    async def load(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> LoadReport:
        """Replace this session's state with a saved session, in a fresh kernel.

        If that fails or is cancelled, this session and its files are unchanged, except that a running cell was stopped.

        The report lists what cannot be restored, such as a variable of a library that is not installed. The file need not be
        trusted: its code runs only in this session's sandbox, like a cell.

        Args:
            path: The file.
            workspace: Whether to unpack the saved files. Existing files with the same names are moved to the trash.
            timeout: Time limit for loading, in seconds.

        Raises:
            InvalidInputError: The file is not a saved session, or is damaged. This session is unchanged.
            StoreError: The file cannot be read.
            ExecutionTimeoutError: Loading exceeded the time limit.
            FilesError, SnapshotError: The files cannot be unpacked.
            StateError: A second kernel cannot be started: restart the session first (`reset`). Or as for `execute`.
            LaunchError, KernelDiedError, ProtocolError: As for `execute`, but raised.
        """
        check_timeout(timeout)
        return await self.saving.load(path, workspace=workspace, timeout=timeout)

    @property
    def loaded(self) -> LoadReport | None:
        """The report of the last `Host.load` or `load`, if any."""
        return self.saving.loaded

    @functools.cached_property
    def saving(self) -> Saving:
        """Saves and loads the session, for `save`, `load`, and services that save while cells run."""
        from cellblock.host.saving import Saving  # rarely used

        return Saving(
            *(self.cells, self._kernels, self._checkpoints, self.files, self._place.directory, self._room, self._launch_fresh),
            *(self._place.clone, self._around.listeners),
        )

    @property
    def _room(self) -> int:
        """Maximum size in bytes of a value moved in or out."""
        return min(self.wanted.limits.media, self.wanted.limits.values)
