"""Sessions: cells run in order, and a kernel that dies is replaced."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from cellblock.common.config import Isolate
from cellblock.errors import LaunchError, StateError
from cellblock.host import import_guard
from cellblock.host.checkpoints.checkpoints import CheckpointHost, Checkpoints
from cellblock.host.checkpoints.files import CheckpointFiles
from cellblock.host.checkpoints.rolling import kind_of
from cellblock.host.checkpoints.session import WithCheckpoints
from cellblock.host.checkpoints.state_log import StateLog
from cellblock.host.checks import INSTALL_TIMEOUT, check_requirements
from cellblock.host.closing import AsyncOnly, Closing
from cellblock.host.kernels.cell import Cell, OnInput
from cellblock.host.kernels.cells import Cells
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.kernels.kernel_slot import KernelSlot
from cellblock.host.launch.kernel_spec import KernelSpec, OnListener, RunningKernel
from cellblock.host.options import Defaults, ResolvedOptions, SessionHooks, SessionOptions, resolve
from cellblock.host.output.kept import KeptResults
from cellblock.host.reader import Reader
from cellblock.host.session_cells import no_more
from cellblock.host.session_questions import WithQuestions
from cellblock.host.session_spec import kernel_spec
from cellblock.host.session_surroundings import SessionSurroundings
from cellblock.host.session_values import WithValues
from cellblock.host.telemetry import SessionTrace
from cellblock.model import CodeExecutionResult
from cellblock.model.checkpoints import FilesMode
from cellblock.walls.egress.network import SandboxNetwork
from cellblock.walls.packages.index import PackageIndex

if TYPE_CHECKING:
    from cellblock.host.checkpoints.branches import Beginning, BranchDirectory
    from cellblock.host.checkpoints.takeover import Takeover
    from cellblock.host.files.walls import Walls
    from cellblock.host.keeping import Keeping, KernelRemains, SessionRemains
    from cellblock.host.snapshots import Store
    from cellblock.model.saving import LoadReport
    from cellblock.walls.egress.rules import Denial
    from cellblock.walls.sandbox.probe import Facts

_log = logging.getLogger("cellblock.sessions")
_PATIENCE = 5.0  # seconds for a kernel to answer an earlier host's question


class SessionHost(CheckpointHost, Protocol):
    """The part of a host that a session needs.

    Attributes:
        defaults: The defaults of its options.
        facts: The facts of this machine.
        index: The package index.
        places: Prefix of the paths of each session's own packages.
        keeping: What outlives this process; None without a custodian.
    """

    defaults: Defaults
    facts: Facts
    index: PackageIndex
    places: str
    keeping: Keeping | None

    def check_usable(self) -> None:
        """Check that the host can be used here and now."""

    def forget(self, session: Session) -> None:
        """Remove a closed session."""

    def store(self) -> Store:
        """Return the store for checkpoint files."""

    def session(self, *, start_from: Beginning) -> Session:
        """Make a session that starts from a checkpoint."""

    async def launch(self, wanted: KernelSpec, prepare: Callable[[], None] = lambda: None) -> Kernel:
        """Start a kernel and wait until it takes cells; `prepare` first creates what it needs outside."""

    async def recover(
        self, remains: KernelRemains, wanted: KernelSpec, on_input: OnInput | None
    ) -> tuple[Kernel, Cell | None] | None:
        """Continue a kernel of a killed host."""


class Session(WithValues, WithQuestions, WithCheckpoints, AsyncOnly):
    """A stateful IPython session. Cells run one at a time, in the order in which they were requested.

    Made by `Host.session`; an async context manager::

        async with Host() as host, host.session() as session:
            result = await session.execute("1 + 1")

    Attributes:
        wanted: The specification of its kernels.
        trace: Its spans, for programs that use OpenTelemetry.
        reader: The reader of its output, for services of the session.
        adopted: Whether it continues a kernel of an earlier host.
        adopted_at: The `position` of that kernel; empty if there was none.
        loaded: The report of `load`; None if nothing was loaded.
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
        self._on_host = options.on_host
        self._branch = start_from.directory() if start_from is not None else None if remains is None else remains.branch
        self._entered = False
        self._states: StateLog | None = None
        self._takeover: Takeover | None = None
        resolved = _resolve(options, host, self._branch, start_from)
        self._host = host
        self._name = f"session {number}"
        self._cwd = resolved.stay_in or resolved.cwd
        self._writable = resolved.writable
        self._walls = _walls(resolved, host.facts, self._cwd)
        self._number, self._label, self._remains = number, label, remains
        self._packages = () if start_from is not None else tuple(options.packages)
        around = self._around = SessionSurroundings(
            options,
            resolved,
            number,
            places=host.places,
            index=host.index,
            keeping=host.keeping,
            remains=remains,
            note=lambda line: self.reader.note(line),
            on_host=self._may_reach if options.on_host is not None else None,
        )
        takers = self._takers(around.network, hooks)
        self.wanted = kernel_spec(options, resolved, around, takers=takers, installer=self._install, session=self._name)
        self.adopted = False
        self.adopted_at = ""
        self.loaded: LoadReport | None = None
        self.trace = SessionTrace(self._name)
        self._kernels = KernelSlot(self._launch)
        kept = KeptResults(self.wanted.limits.history)
        images = resolved.images_dir
        self._cells = Cells(self._name, self._kernels, hooks, self.trace, host.check_usable, images, kept)
        if around.network is not None:
            self._cells.on_stopped = self._kernels.on_replaced = around.network.withdraw_questions
        self.reader = Reader(self._cells, self._kernels)
        self._start_from = start_from
        self._checkpoints = self._make_checkpoints(options, resolved, hooks)
        self._resumed: tuple[Cell, asyncio.Task[CodeExecutionResult]] | None = None
        self._closing = Closing()

    async def _may_reach(self, host: str, port: int) -> bool:
        """Get a decision on a host that the policy does not name.

        Branches share one network, where each can connect to the proxy of another. The proxy cannot tell which branch
        connects, and so whose callback to ask (decision 45).
        """
        kernel = self._kernels.current
        if kernel is not None and kernel.family.branched:
            self.reader.note(
                f"[cellblock] nobody is asked about {host}:{port} while {self._name} has branches, which share its network: "
                "name the host in the policy (network.allow)"
            )
            return False
        assert self._on_host is not None  # otherwise the proxy does not ask
        return await self._on_host(host, port)

    def _make_checkpoints(self, options: SessionOptions, resolved: ResolvedOptions, hooks: SessionHooks) -> Checkpoints:
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
            ),
            self._branch,
        )

    def _takers(self, network: SandboxNetwork | None, hooks: SessionHooks) -> dict[str, OnListener]:
        takers: dict[str, OnListener] = {}
        if network is not None and network.reaches:
            takers["egress"] = self._taker("egress", network.adopt)
        if hooks.tool_port is not None:
            takers["tools"] = self._taker("tools", hooks.tool_port)
        return takers

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
            if self.wanted.tier.sandboxed:
                import_guard.distrust(self._writable)
            if self._branch is not None:
                self._entered = True
                self._branch.enter(self._host.keeping if self.wanted.kept is not None else None)
            if self._remains is None:
                self._write_states()
                self.relabel(self._label)
            await self._checkpoints.files.recover()
            await self._go_on(on_input)
            await self._kernels.live()
            if self._takeover is not None:
                self._takeover.settled()
                self._takeover = None
            self._checkpoints.begin()
            await self._install_first()
        except BaseException as error:  # also a cancellation: a start that fails leaves nothing
            _log.info("%s could not be started: %r", self._name, error)
            await self.close()
            raise
        took = 1000 * (time.perf_counter() - began)
        self.trace.start(self.isolate)
        _log.info("%s started in %.1f ms, isolate=%s, in %r", self._name, took, self.isolate, self._cwd)

    async def _install_first(self) -> None:
        """Install the packages from the options, unless an earlier host or another session has installed them."""
        if not self._packages or self._remains is not None or self._branch is not None:
            return
        check_requirements(self._packages)
        code = f"%pip install --quiet {shlex.join(self._packages)}"
        # Not subject to approval: the program that makes the session has asked for it.
        result = await self._cells.run(Cell(code, None, queue_limit=None, silent=True, trusted=True), INSTALL_TIMEOUT)
        if not result.ok:
            said = [line for line in (result.text or "").splitlines() if line.startswith("ERROR: ")]
            why = said[-1].removeprefix("ERROR: ") if said else result.error.evalue if result.error is not None else ""
            raise LaunchError(f"the packages {', '.join(self._packages)} cannot be installed: {why}")

    def _write_states(self) -> None:
        """Record all further events for a later host, if this one has a custodian."""
        if self._host.keeping is not None and self.wanted.kept is not None:
            self._states = StateLog.make()
            self._checkpoints.keep(self._states)

    async def _go_on(self, on_input: OnInput | None) -> None:
        """Continue with the remains from an earlier host, if there are any."""
        if self._remains is None:
            return
        log, recalled = self._remains.log, self._remains.recalled
        self._remains.log = self._remains.recalled = None
        self._states = log
        if log is not None and recalled is not None:
            self._takeover = self._checkpoints.recall(log, recalled)
        await self._adopt(on_input)
        if self._takeover is None:
            self._checkpoints.begin_after_another()
            if log is None:
                self._write_states()
                self.relabel(self._label)
            else:
                self._checkpoints.keep(log)
        elif why := await self._takeover.finish_going():
            self.reader.note(
                f"[cellblock] The session was going back to an earlier state when its host was killed, and cannot: {why}. "
                "Files may be those of that state"
            )

    async def _adopt(self, on_input: OnInput | None) -> None:
        """Continue the kernel of an earlier host, if there is one."""
        if self._remains is None or self._remains.kernel is None:
            return
        remains, self._remains.kernel = self._remains.kernel, None
        if (recovered := await self._host.recover(remains, self.wanted, on_input)) is None:
            return
        kernel, cell = recovered
        self._kernels.adopt(kernel)
        self._checkpoints.resuming.serving = kernel.family
        if self._takeover is not None:
            self._takeover.take_kernel(kernel, cell, replaced=self._remains.replaced)
        self.adopted, self.adopted_at = True, kernel.position
        kernel.thaw()  # that host may have been killed on the way to another state
        await kernel.answered(_PATIENCE)  # before the cell's end is handled: that makes a checkpoint, which asks the kernel
        if cell is not None:
            running = await self._cells.adopt(kernel, cell)
            running.add_done_callback(functools.partial(no_more, cell))
            if not cell.silent:
                self._resumed = cell, running

    def relabel(self, label: str) -> None:
        """Change the session's label for a later host that continues it; see `Host.session`.

        No later host continues a closed session.
        """
        self._label = label
        if self._host.keeping is not None and self._cells.state != "closed":
            around = self._around
            self._host.keeping.session_made(self._number, label, around.place, around.env, self._branch, self._states)

    async def close(self) -> None:
        """Stop whatever runs and end every process of the session.

        It can be repeated. Cancelling the caller does not stop it.
        """
        self._cells.state = "closed"
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        await self._checkpoints.close()
        await self._cells.close()
        await self._around.close()
        if self._branch is not None and self._entered:
            self._entered = False
            await self._branch.leave()
        self._host.forget(self)
        if self._host.keeping is not None:
            self._host.keeping.session_gone(self._number)
        if self._states is not None:
            self._states.close()
            self._states = None
        self.trace.end()
        _log.info("%s closed", self._name)

    def _taker(self, name: str, taker: OnListener) -> OnListener:
        def take(listener: socket.socket) -> None:
            self._checkpoints.resuming.ports[name] = listener.getsockname()[1]
            taker(listener)

        return take

    async def _launch(self, dead: Kernel | None) -> Kernel:
        """Start a kernel: from the session's initial checkpoint, from the last state of a dead kernel, or a fresh one."""
        if self._start_from is not None:
            kernel = await self._checkpoints.begin_with(self._start_from)
            self._start_from = None
            return kernel
        if dead is not None and (recovered := await self._checkpoints.recover(dead)) is not None:
            return recovered
        if dead is None and self._takeover is not None and (left := await self._takeover.recover_left()) is not None:
            return left
        notice = None if dead is None else dead.notice(None)
        await self._checkpoints.about_to_begin_anew()
        kernel = await self._host.launch(replace(self.wanted, notice=notice), self._around.prepare)
        self._checkpoints.begin_anew(kernel)
        return kernel

    async def _install(self, kernel: RunningKernel, arguments: tuple[str, ...]) -> int:
        return await self._around.packages.install(kernel, arguments, self._host.index, self._host.facts, self._host.launch)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def afresh(self) -> bool:
        """Whether its kernel started without variables, and was not made from a checkpoint."""
        kernel = self._kernels.current
        return kernel is None or not kernel.of_copy

    @property
    def denials(self) -> list[Denial]:
        """The last attempts to reach something on the network that the policy does not allow, oldest first."""
        return [] if self._around.network is None else list(self._around.network.denials)

    @property
    def isolate(self) -> Isolate:
        """How its kernels are isolated."""
        return self.wanted.tier.name

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


def _resolve(
    options: SessionOptions, host: SessionHost, branch: BranchDirectory | None, start_from: Beginning | None
) -> ResolvedOptions:
    """Resolve the options of a session, which may be a branch with its own files.

    A session that is made from a checkpoint gets the options of the checkpoint's session, even if this program has changed its
    directory since: a kernel keeps its sandbox.
    """
    moment = None if start_from is None else start_from.checkpoint.moment
    if moment is not None and moment.host is host and options.same_surroundings(moment.options):
        resolved = moment.resolved
    elif branch is None:
        return resolve(options, host.defaults, host.facts)
    else:
        resolved = resolve(replace(options, working_dir=branch.root), host.defaults, host.facts)
    return resolved if branch is None else replace(resolved, stay_in=branch.files)


def _walls(resolved: ResolvedOptions, facts: Facts, directory: str) -> Walls | None:
    """Return the paths that a session cannot read or write; None if it has no sandbox."""
    if not resolved.tier.sandboxed:
        return None
    from cellblock.host.files.walls import Walls

    walls = Walls.of(resolved.policy, facts, os.path.realpath(resolved.cwd), os.path.realpath(directory))
    # If names cannot be protected, the session's changes there must come back when it is undone.
    return walls if resolved.tier.holds_names else replace(walls, protected=())
