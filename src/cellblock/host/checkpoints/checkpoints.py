"""The checkpoints of one session: made, kept, and gone back to."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from cellblock.errors import CheckpointError, InvalidInputError, KernelDiedError, LaunchError
from cellblock.host.checkpoints.checkpoint import Checkpoint, Moment
from cellblock.host.checkpoints.filing import Filing
from cellblock.host.checkpoints.fitting import check_same_sandbox
from cellblock.host.checkpoints.past import files_time
from cellblock.host.checkpoints.rolling import Pace, Restored, Rolling
from cellblock.host.kernels.family import Anew
from cellblock.host.kernels.stopping import answer_to
from cellblock.model.checkpoints import Changes, FilesMode, Undone
from cellblock.wire.control import Listener
from cellblock.wire.protocol import State

if TYPE_CHECKING:
    from cellblock.host.checkpoints.branches import Beginning, BranchDirectory
    from cellblock.host.checkpoints.files import CheckpointFiles
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.family import Copy, Family
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.options import SessionOptions
    from cellblock.snapshots import Snapshot
    from cellblock.snapshots.times import Spans

_log = logging.getLogger("cellblock.sessions")
_MAX_NAME = 200


class CheckpointHost(Protocol):
    """What is needed of a host.

    Attributes:
        pace: When its sessions make automatic checkpoints.
    """

    pace: Pace

    async def resume(self, copy: Copy, wanted: KernelSpec, how: Anew) -> Kernel:
        """Make a kernel of a copy, and wait until it takes cells."""

    def rolled(self, checkpoint: Checkpoint) -> None:
        """Take note of a checkpoint that was made without being asked for, and drop the oldest if there are too many."""


class Checkpoints:
    """What `Session` does with checkpoints.

    Attributes:
        skipped: Why the last automatic checkpoint was not made; empty if it was.
        files: The files of the session's directory.
        filing: Keeps them without being asked for.
        ports: Where the session's services listen in the sandbox of `serving`, by name.
        serving: The kernels that can reach these.
        branch: Where its files are, if not in the workspace of its sandbox.
    """

    def __init__(
        self,
        name: str,
        host: CheckpointHost,
        options: SessionOptions,
        wanted: KernelSpec,
        cells: Cells,
        kernels: KernelSlot,
        rolling: Rolling | None,
        environment: Callable[[int], Mapping[str, str]],
        outside: Callable[[float], list[str]],
        files: CheckpointFiles,
        branch: BranchDirectory | None,
    ) -> None:
        """Begin without checkpoints.

        Args:
            name: What messages call the session.
            host: Makes kernels of copies.
            options: The session's options: those of sessions that are made of its checkpoints.
            wanted: What each kernel of the session is asked to be.
            cells: What runs in it.
            kernels: Where that runs.
            rolling: How automatic checkpoints are made; None: they are not.
            environment: Returns the variables for a proxy that listens on a port in the session.
            outside: Returns what was allowed outside since a time.
            files: The files of the session's directory.
            branch: Where these are, if not in the workspace of its sandbox.
        """
        self._name = name
        self._host = host
        self._options = options
        self._wanted = wanted
        self._cells = cells
        self._kernels = kernels
        self._rolling = rolling
        self._environment = environment
        self._outside = outside
        self.files = files
        self.branch = branch
        self.filing = Filing(files)
        self._kept: list[Checkpoint] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._fresh = False
        self.skipped = ""
        self.ports: dict[str, int] = {}
        self.serving: Family | None = None
        cells.on_begin = self._stop_waiting
        cells.on_idle = self._wait_for_idle
        cells.can_recover = lambda dead: self.to_recover(dead) is not None
        kernels.relieve = self.relieve

    # -- making --------------------------------------------------------------------------------------------------------

    async def make(self, name: str, files: FilesMode) -> Checkpoint:
        """See `Session.checkpoint`."""
        if not isinstance(name, str) or len(name) > _MAX_NAME:
            raise InvalidInputError(f"a checkpoint's name must be a text of at most {_MAX_NAME} characters, not {name!r:.250}")
        if files not in ("shared", "copy"):
            raise InvalidInputError(f"files must be 'shared' or 'copy', not {files!r}")
        try:
            async with self._cells.turn():
                checkpoint = await self._copy(await self._kernels.live(), name=name, automatic=False)
                if files == "copy":
                    try:
                        checkpoint.hold(await self.files.take(), self.files.drop)
                    except BaseException:  # also a cancellation: nobody else has the checkpoint
                        checkpoint.discard()
                        raise
                return checkpoint
        finally:
            self._wait_for_idle()  # again: there may be none, or this one may be dropped before the next cell

    async def _copy(self, kernel: Kernel, *, name: str = "", automatic: bool) -> Checkpoint:
        """Make a checkpoint of a kernel, while it is nobody else's turn."""
        ask = functools.partial(answer_to, kernel)
        copy = await kernel.family.copy(kernel.control, ask)
        past = self._cells.past
        moment = Moment(copy, self._host, self._options, past.line, past.state, self._wanted, self.branch)
        checkpoint = Checkpoint(moment, self, name=name, automatic=automatic, execution_count=kernel.count)
        self._kept.append(checkpoint)
        return checkpoint

    def all(self) -> list[Checkpoint]:
        """Return those that can be gone back to, oldest first."""
        self._kept = [checkpoint for checkpoint in self._kept if checkpoint.alive]
        return [*self._kept]

    def forget(self, checkpoint: Checkpoint) -> None:
        """Take note that one was dropped."""
        if checkpoint in self._kept:
            self._kept.remove(checkpoint)

    # -- without being asked -------------------------------------------------------------------------------------------

    def _stop_waiting(self) -> None:
        self.filing.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for_idle(self) -> None:
        self._stop_waiting()
        if self._rolling is not None:
            self._timer = asyncio.get_running_loop().call_later(self._rolling.after, self._begin_rolling)

    def _begin_rolling(self) -> None:
        self._timer = None
        if self._rolling is None or not (self._task is None or self._task.done()):
            return
        if wait := self._host.pace.ask():
            self._timer = asyncio.get_running_loop().call_later(wait, self._begin_rolling)
        else:
            self._task = asyncio.create_task(self._roll(self._rolling))

    async def _roll(self, rolling: Rolling) -> None:
        """Make a checkpoint while nobody waits for the session, or keep the files of the one that there is."""
        if self._cells.busy or self._cells.state != "running":
            return
        if (made := self._rolled()) is not None:
            if made.snapshot is None:
                self._keep_files(made)
            return
        async with self._cells.turn():
            kernel = self._kernels.current
            if kernel is None or kernel.death is not None or kernel.state is not State.IDLE:
                return
            began = time.perf_counter()
            try:
                checkpoint = await self._copy(kernel, automatic=True)
                self.skipped = ""
            except (CheckpointError, KernelDiedError, OSError) as error:
                self.skipped = str(error)
                return
            if (took := time.perf_counter() - began) > rolling.longest:
                self._rolling = None
                self.skipped = f"the last one took {took:.2g} s, and no more than {rolling.longest:g} s are allowed"
                _log.info("%s: no more automatic checkpoints: %s", self._name, self.skipped)
        self._drop_oldest(rolling.keep)
        self._host.rolled(checkpoint)
        self._keep_files(checkpoint)

    def _rolled(self) -> Checkpoint | None:
        """Return such a checkpoint of the present state, if there is one."""
        return next((one for one in self.automatic if one.moment.state == self._cells.past.state), None)

    def _keep_files(self, checkpoint: Checkpoint) -> None:
        def hold(files: Snapshot) -> None:
            self._cells.past.rest(checkpoint.moment.state)
            if checkpoint.alive:
                checkpoint.let_go()
                checkpoint.hold(files, self.files.drop)
            else:
                self.files.drop(files)

        self.filing.begin(hold)

    def _forget_files(self) -> None:
        """Drop the files that were kept for the present state: the workspace has changed. They are kept again later."""
        if (made := self._rolled()) is not None:
            made.let_go()

    def files_changed(self) -> None:
        """Take note that somebody else has changed the session's files, which no undo is to take back."""
        if self._cells.busy or self._rolling is None or self._cells.state != "running":
            return
        self._forget_files()
        if self._cells.past.line or self._rolled() is not None:
            self._wait_for_idle()
        else:
            self.filing.stop()
            self.filing.begin_first()

    @property
    def automatic(self) -> list[Checkpoint]:
        """Those that were made without being asked for, oldest first."""
        return [checkpoint for checkpoint in self.all() if checkpoint.automatic]

    def _drop_oldest(self, keep: int) -> None:
        automatic = self.automatic
        for checkpoint in automatic[: max(len(automatic) - keep, 0)]:
            checkpoint.discard()

    def relieve(self) -> bool:
        """Drop the oldest automatic checkpoint, as there is too little memory; return whether there was one."""
        automatic = self.automatic
        if automatic:
            automatic[0].discard()
        return bool(automatic)

    # -- going back ----------------------------------------------------------------------------------------------------

    async def restore(self, checkpoint: Checkpoint) -> Changes:
        """See `Session.restore`."""
        self.check(checkpoint)
        async with self._cells.turn(stop=True):
            self.check(checkpoint)
            return await self._go_to(checkpoint)

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that this session can use a checkpoint.

        Raises:
            InvalidInputError, CheckpointError: It is not one; it is gone, or belongs to another host.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidInputError(f"checkpoint must be what Session.checkpoint() returns, not {checkpoint!r:.100}")
        checkpoint.check()
        if checkpoint.moment.host is not self._host:
            raise CheckpointError("the checkpoint belongs to another host; sessions go back to those of their own host only")
        check_same_sandbox(checkpoint.moment.wanted, self._wanted)

    async def _go_to(self, checkpoint: Checkpoint, within: Spans | None = None) -> Changes:
        changes, began = Changes(), files_time()

        async def launch() -> Kernel:
            nonlocal changes
            kernel, changes = await self._resume_with_files(checkpoint, within=within)
            return kernel

        try:
            await self._kernels.swap(launch, lambda: self._has_gone_to(checkpoint, began))
        finally:
            self._wait_for_idle()  # this one may be dropped before the next cell, or hold no files
        return changes

    def _has_gone_to(self, checkpoint: Checkpoint, began: int) -> None:
        self._cells.past.go_to(checkpoint.moment.past, checkpoint.moment.state)
        self._cells.past.brought_back(began)
        if self._rolled() is not checkpoint:
            self._forget_files()
        # What was made since is of a state that was left; named ones stay.
        line = checkpoint.moment.numbers
        for other in self.automatic:
            if not other.moment.numbers <= line:
                other.discard()

    async def _resume_with_files(
        self, checkpoint: Checkpoint, beginning: Beginning | None = None, *, within: Spans | None = None
    ) -> tuple[Kernel, Changes]:
        """Make a kernel of a checkpoint, after its files are back, if it holds any: the kernel opens its files again."""
        made: list[Kernel] = []

        async def resume() -> None:
            made.append(await self.resume(checkpoint, beginning))

        try:
            if checkpoint.snapshot is None:
                await resume()
                return made[0], Changes()
            changes = await self.files.restore(checkpoint.snapshot, resume, within=within)
            return made[0], changes
        except BaseException:  # also a cancellation: nobody else has the kernel
            for kernel in made:
                await kernel.close()
            raise

    async def undo(self, count: int) -> Undone:
        """See `Session.undo`."""
        if type(count) is not int or count < 1:
            raise InvalidInputError(f"the number of cells to undo must be at least 1, not {count!r}")
        async with self._cells.turn(stop=True):
            past = self._cells.past
            line = past.line
            if count > len(line):
                raise CheckpointError(f"only {len(line)} of {count} cells can be undone")
            changes, left = Changes(), ""
            target, before = line[-count][0], {number for number, _ in line[:-count]}
            candidates = [checkpoint for checkpoint in self.all() if checkpoint.moment.numbers <= before]
            if candidates:
                # The files of an automatic one are the newest that there were in its state.
                checkpoint = max(candidates, key=lambda one: (len(one.moment.past), one.snapshot is not None, one.automatic))
                changes = await self._go_to(checkpoint, past.spans_after(checkpoint.moment.state) or None)
                if checkpoint.snapshot is not None and self._rolled() is checkpoint:
                    self._keep_files(checkpoint)  # again, with what has stayed
                execution_count, since = checkpoint.execution_count, checkpoint.made.timestamp()
                if checkpoint.snapshot is None:
                    left = self._why_files_stay(checkpoint)
            elif target == line[0][0] and self._fresh:
                first, within = self.filing.take_first(), past.spans_after(0) or None
                try:
                    await self._kernels.renew()
                finally:  # also if the caller is cancelled: the kernel is replaced nevertheless
                    past.abandon(number for number, _ in line)
                    changes, left = await self.filing.bring_back(first, within)
                execution_count, since = 0, 0.0
            else:
                raise CheckpointError(self._cannot_undo())
            kept = {number for number, _ in past.line}
            cells = [entry for number, entry in line if number not in kept]
            files = sorted({*changes.written, *changes.removed})
            return Undone(cells, execution_count, files, left, self._outside(since))

    def _why_files_stay(self, checkpoint: Checkpoint) -> str:
        if not checkpoint.automatic:
            return "the checkpoint was made with files='shared'"
        if not self.files.automatic:
            return "files are kept after each cell only if the session has a working_dir of its own"
        return self.filing.skipped or "they were not kept in time"

    def _cannot_undo(self) -> str:
        reason = f" ({self.skipped})" if self.skipped else ""
        if self._rolling is None and not self.skipped:
            reason = " (the session was made with recovery='none')"
        return f"there is no checkpoint from before that cell{reason}; a checkpoint can be made with session.checkpoint()"

    async def begin_with(self, beginning: Beginning) -> Kernel:
        """Make the session's first kernel, of a checkpoint."""
        checkpoint = beginning.checkpoint
        self.check(checkpoint)
        kernel, _ = await self._resume_with_files(checkpoint, beginning)
        self._cells.past.go_to(checkpoint.moment.past, checkpoint.moment.state)
        return kernel

    def begin_anew(self, kernel: Kernel) -> None:
        """Take note of a fresh kernel."""
        self.serving = kernel.family
        self._cells.past.begin_anew()
        self._fresh = True
        if self._rolling is not None:
            self.filing.begin_first()
        for checkpoint in self.automatic:
            checkpoint.discard()

    async def resume(self, checkpoint: Checkpoint, beginning: Beginning | None = None) -> Kernel:
        """Make a kernel of a checkpoint for this session.

        Args:
            checkpoint: The checkpoint.
            beginning: For the session's first one, which shares no random state unless it is to.
        """
        family = checkpoint.moment.copy.family
        listeners: dict[str, Listener] = {}
        env: dict[str, str] = {}
        if self.serving is family:
            env = {self._wanted.setup.listeners[name].variable: str(port) for name, port in self.ports.items()}
        else:
            listeners = dict(self._wanted.setup.listeners)
            if "egress" in listeners:
                port = family.next_port(listeners["egress"].port)
                listeners["egress"] = replace(listeners["egress"], port=port)
                env = dict(self._environment(port))
        how = Anew(
            env=env,
            listeners=listeners,
            stay_in=self._wanted.setup.stay_in,
            seed=None if beginning is None else beginning.seed,
            same_random_state=beginning is None or beginning.same_random_state,
        )
        try:
            kernel = await self._host.resume(checkpoint.moment.copy, self._wanted, how)
        except LaunchError as error:
            most = self._wanted.policy.resources.processes
            room = f" Each checkpoint is a process, and {most} may run at once (Resources(processes=…)): drop some."
            reason = room if self._wanted.isolate != "none" and checkpoint.alive else ""
            raise CheckpointError(f"no kernel could be made from checkpoint {checkpoint.id}: {error}.{reason}") from error
        if listeners:
            self.serving = family
        kernel.count, kernel.of_copy = checkpoint.execution_count, True
        return kernel

    async def look_at(self, checkpoint: Checkpoint) -> Kernel:
        """Make a kernel of a checkpoint, only to look at its variables. It can reach nothing, and is the caller's to close."""
        wanted = replace(self._wanted, kept=None)  # nobody goes on with it
        return await self._host.resume(checkpoint.moment.copy, wanted, Anew(stay_in=wanted.setup.stay_in))

    # -- after a crash -------------------------------------------------------------------------------------------------

    def to_recover(self, dead: Kernel) -> Checkpoint | None:
        """Return the last state of a dead kernel that the session can go on from, if there is one."""
        line = {number for number, _ in self._cells.past.line}
        found = [one for one in self.all() if one.moment.copy.family is dead.family and one.moment.numbers <= line]
        if not found or self._rolling is None:
            return None
        return max(found, key=lambda one: (len(one.moment.past), one.moment.state))

    async def recover(self, dead: Kernel) -> Kernel | None:
        """Make a kernel of the last state that there is; None if there is none, or it cannot be gone on from."""
        if (checkpoint := self.to_recover(dead)) is None:
            return None
        try:
            kernel = await self.resume(checkpoint)
        except (CheckpointError, LaunchError) as error:
            _log.info("%s: no kernel could be made of %r: %s", self._name, checkpoint, error)
            return None
        lost = self._cells.past.go_to(checkpoint.moment.past, checkpoint.moment.state)
        self._forget_files()
        kernel.restored = Restored(checkpoint.execution_count, len(lost))
        return kernel

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Drop what was made without being asked for, before the session ends. It can be repeated."""
        self._stop_waiting()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        await self.filing.close()
        for checkpoint in self.automatic:
            checkpoint.discard()
        self._kept.clear()
        await self.files.close()
