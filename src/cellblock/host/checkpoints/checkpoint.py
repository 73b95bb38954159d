"""A checkpoint, kernels from it, which sessions can use it, and a session's list of checkpoints and undone states."""

from __future__ import annotations

import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cellblock.errors import CheckpointError, InvalidInputError, LaunchError, UnknownCheckpointError
from cellblock.host.checkpoints.branches import BranchDirectory, check_whole
from cellblock.host.kernels.family import Anew, Refusal
from cellblock.host.kernels.pairs import Instant
from cellblock.host.kernels.state_events import Copied, Dropped, Filed, Going, RedosDropped, Saved, Undid, Way
from cellblock.host.kernels.stopping import answer_to
from cellblock.model.checkpoints import CheckpointRecord, FilesMode
from cellblock.walls.sandbox.paths import is_inside

if TYPE_CHECKING:
    from cellblock.host.checkpoints.workspace_snapshots import Bring, CheckpointFiles
    from cellblock.host.clones.clone import Clone
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.family import Copy
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.session_state import SessionState
    from cellblock.host.kernels.state_events import Numbered
    from cellblock.host.launch.kernel_spec import DeathNotice, KernelSpec
    from cellblock.host.launch.session_listeners import SessionListeners
    from cellblock.host.options import ResolvedOptions, SessionOptions
    from cellblock.host.snapshots import Snapshot
    from cellblock.host.snapshots.trash import Entry
    from cellblock.host.snapshots.undo import Interval
    from cellblock.wire.control import Listener

    Resume: TypeAlias = Callable[[Copy, KernelSpec, Anew], Awaitable[Kernel]]
    """Creates a kernel from a copy, and waits until it accepts cells."""


def find_checkpoint(known: Sequence[Checkpoint], name: str, owner: str = "this session") -> Checkpoint:
    """Return a checkpoint by id, or the last one with a name.

    Args:
        known: The checkpoints of a session, oldest first.
        name: The id or the name.
        owner: The session's name in the message.

    Raises:
        UnknownCheckpointError: No checkpoint matches.
    """
    for checkpoint in reversed(known):
        if name and name in (checkpoint.id, checkpoint.name):
            return checkpoint
    named = ", ".join(checkpoint.name or checkpoint.id for checkpoint in known[-10:]) or "none"
    raise UnknownCheckpointError(f"there is no checkpoint {name!r:.250}; {owner} has: {named}")


class Origin(NamedTuple):
    """The session that creates a checkpoint, as far as sessions that begin with it need to know.

    Attributes:
        host: The host, whose sessions can use the checkpoint.
        options: The session's options.
        resolved: The options with defaults filled in.
        wanted: The specification of the session's kernels.
        branch: The directory of the session's files, if it is not the sandbox's workspace.
        clone: The clone that the session works in, if it does.
    """

    host: object
    options: SessionOptions
    resolved: ResolvedOptions
    wanted: KernelSpec
    branch: BranchDirectory | None
    clone: Clone | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The content of a checkpoint, for the host that created it.

    Attributes:
        copy: The copy of the kernel.
        past: The cells that led to the state.
        state: The number of the state, as in `SessionState.state`.
        history: The session's history.
        origin: The session.
    """

    copy: Copy
    past: tuple[Numbered, ...]
    state: int
    history: SessionState
    origin: Origin

    @property
    def last(self) -> int:
        """The number of the last cell before the state, which implies all earlier ones; 0 if none."""
        return self.past[-1].number if self.past else 0

    def is_of(self, line: Container[int]) -> bool:
        """Return whether this state precedes the state that these cells led to."""
        return not self.past or self.last in line


class Checkpoint:
    """A snapshot of a session's memory: variables, imports, directory, environment, and random state.

    A session can restore it any number of times, until it is dropped or its host is closed. After its session is closed, it is
    also dropped when the program has no reference to it.

    Attributes:
        id: Unique id.
        name: Name given by the user; may be empty.
        made: Creation time.
        at: Creation time by `time.monotonic`, because the wall clock can be set back.
        execution_count: Number of the last cell before the checkpoint.
        automatic: Whether it was created automatically. Automatic checkpoints above the limit are dropped.
        moment: Content, for the host.
        snapshot: Files, if the checkpoint has them.
        without_files: Why the files could not be saved; empty if they were, or if that was not requested.
        passing: Whether it is temporary, for one restore.
    """

    def __init__(self, saved: Saved, moment: Moment, owner: CheckpointList) -> None:
        """Create a checkpoint, possibly an earlier host's, without its files."""
        self.id, self.made, self.at = saved.id, saved.made, saved.at
        self.name = saved.name
        self.execution_count = saved.execution_count
        self.automatic = saved.automatic
        self.passing = saved.passing
        self.without_files = saved.without_files
        self.moment = moment
        self.snapshot: Snapshot | None = None
        self._saved = saved
        self._owner = owner
        self._drop_files: Callable[[], object] = lambda: None
        weakref.finalize(self, moment.copy.family.drop_soon, moment.copy).atexit = False  # the host ends all copies

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        gone = "" if self.alive else ", gone"
        return f"<Checkpoint {self.id}{name} after cell {self.execution_count}{gone}>"

    @property
    def files(self) -> FilesMode:
        """Whether the state includes the workspace's files."""
        return "shared" if self.snapshot is None else "copy"

    @property
    def saved(self) -> Saved:
        """The checkpoint in its session's state."""
        return self._saved._replace(files=self.snapshot, without_files=self.without_files)

    @property
    def record(self) -> CheckpointRecord:
        """The checkpoint as data."""
        made = self.made.isoformat()
        cell = self.moment.past[-1].entry.tag if self.moment.past else ""
        return CheckpointRecord(self.id, self.name, made, self.execution_count, self.automatic, self.files, cell)

    @property
    def alive(self) -> bool:
        """Whether the checkpoint can be restored."""
        return not self.moment.copy.gone.done()

    def check(self) -> None:
        """Check that the checkpoint can be restored.

        Raises:
            CheckpointError: The checkpoint was dropped, or its process has ended.
        """
        if not self.alive:
            raise CheckpointError(
                f"checkpoint {self.name or self.id!r} no longer exists: it was dropped, or its process was killed"
            )

    def hold(self, snapshot: Snapshot, drop: Callable[[Snapshot], None]) -> None:
        """Attach files. `drop` is called with them when they are no longer needed."""
        self.snapshot, self.without_files = snapshot, ""
        finalizer = weakref.finalize(self, drop, snapshot)
        finalizer.atexit = False  # the host removes all files
        self._drop_files = finalizer
        self._owner.note_files(self)

    def let_go(self) -> None:
        """Release the files."""
        self._drop_files()
        had, self.snapshot, self._drop_files = self.snapshot, None, lambda: None
        if had is not None:
            self._owner.note_files(self)

    def miss(self, reason: str) -> None:
        """Release the files, if any, and record why the checkpoint has none."""
        self.let_go()
        self.without_files = reason
        self._owner.note_files(self)

    def belongs_to(self, owner: CheckpointList) -> None:
        """Transfer the checkpoint to another session."""
        self._owner = owner

    def discard(self) -> None:
        """Drop the checkpoint without waiting until its memory is free."""
        self._drop_files()
        copy = self.moment.copy
        copy.family.drop(copy)
        self._owner.forget(self)

    async def drop(self) -> None:
        """Drop the checkpoint and free its memory. Sessions created from it continue. Idempotent."""
        self.discard()
        await self.moment.copy.family.settle()


class Beginning(NamedTuple):
    """The start of a session from a checkpoint.

    Attributes:
        checkpoint: The checkpoint.
        files: ``copy`` for a directory of its own with the checkpoint's files; ``shared`` for the directory of the
            checkpoint's session.
        seed: Seed of the random generators; None for a new seed. With `same_random_state`, it seeds only generators without a
            state.
        same_random_state: Whether the generators continue from the checkpoint's random state.
    """

    checkpoint: Checkpoint
    files: FilesMode = "shared"
    seed: int | None = None
    same_random_state: bool = False

    def directory(self) -> BranchDirectory | None:
        """Return the directory of the session's files, if it differs from the options.

        Raises:
            InvalidInputError: The checkpoint has no files.
            SnapshotError: The checkpoint lacks some files.
        """
        if self.files != "copy":
            return self.checkpoint.moment.origin.branch
        if self.checkpoint.snapshot is None:
            raise InvalidInputError("files='copy' needs a checkpoint that was made with files='copy'")
        check_whole(self.checkpoint.snapshot, "copied for a branch: fork with files='shared', or move some files elsewhere")
        return BranchDirectory.new(self.checkpoint.moment.origin.wanted.setup.cwd)


def check_same_sandbox(theirs: KernelSpec, ours: KernelSpec) -> None:
    """Check that kernels of a checkpoint's session (`theirs`) can serve another session (`ours`).

    A kernel stays in the sandbox in which it started, even if its new session has other options.

    Raises:
        CheckpointError: The sandboxes differ. The message says how.
    """
    if theirs.tier is not ours.tier:
        raise CheckpointError(
            f"the checkpoint was made with isolate={theirs.tier.name!r}, and this session has {ours.tier.name!r}: a kernel "
            "keeps the sandbox that it was started in"
        )
    if theirs.setup.commands != ours.setup.commands:
        raise CheckpointError(
            "the checkpoint's session and this one handle shell commands differently (on_command, forbid_programs)"
        )
    if not ours.tier.sandboxed:
        return
    if theirs.policy != ours.policy:
        raise CheckpointError("the checkpoint was made with another policy: a kernel keeps the sandbox that it was started in")
    if not is_inside(ours.setup.cwd, theirs.setup.cwd):
        raise CheckpointError(
            f"the checkpoint's sandbox has the workspace {theirs.setup.cwd}, and cannot reach this session's directory, "
            f"{ours.setup.cwd}"
        )


class Resuming:
    """Creates kernels from checkpoints.

    Attributes:
        can_double: Returns whether a session can have a second kernel next to this one.
        go_to: Called with each state to which the session returns, for its packages: in programs and fresh kernels.
    """

    def __init__(
        self,
        make: Resume,
        can_double: Callable[[Kernel], bool],
        wanted: KernelSpec,
        environment: Callable[[int], Mapping[str, str]],
        go_to: Callable[[int], None],
        listeners: SessionListeners,
    ) -> None:
        self._make = make
        self.can_double = can_double
        self._wanted = wanted
        self._environment = environment
        """Returns the environment variables for a proxy on a port of the session."""
        self.go_to = go_to
        self._listeners = listeners

    async def resume(
        self, checkpoint: Checkpoint, beginning: Beginning | None = None, notice: DeathNotice | None = None
    ) -> Kernel:
        """Create a kernel from a checkpoint for this session.

        Args:
            checkpoint: The checkpoint.
            beginning: The start of the session's first kernel, which decides whether it shares the random state.
            notice: The death notice of the kernel that it replaces, if that kernel died.
        """
        family = checkpoint.moment.copy.family
        listeners: dict[str, Listener] = {}
        env: dict[str, str] = {}
        if ports := self._listeners.ports(family.number):
            env = {self._wanted.setup.listeners[name].variable: str(port) for name, port in ports.items()}
        else:
            listeners = dict(self._wanted.setup.listeners)
            if "egress" in listeners:
                if family.sealed:
                    raise CheckpointError(
                        "the network of this sandbox is closed permanently (close_egress), so it accepts no other "
                        "session: use a checkpoint from before"
                    )
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
            kernel = await self._make(checkpoint.moment.copy, replace(self._wanted, notice=notice), how)
        except BaseException as error:  # includes cancellation: the session's kernel stays
            self._listeners.settle()
            if not isinstance(error, LaunchError):
                raise
            most = self._wanted.policy.resources.processes
            room = (
                f" Each checkpoint is a process, and {most} may run at once (Resources(processes=…)): drop some checkpoints."
            )
            reason = room if self._wanted.tier.sandboxed and checkpoint.alive else ""
            raise CheckpointError(f"no kernel could be made from checkpoint {checkpoint.id}: {error}.{reason}") from error
        kernel.count, kernel.of_copy = checkpoint.execution_count, True
        self.go_to(checkpoint.moment.state)
        return kernel

    async def prepare(self, checkpoint: Checkpoint, files: Bring[object] | None, beginning: Beginning | None = None) -> Kernel:
        """Restore files, if any, then create a kernel as by `resume`, which reopens them. A failure leaves nothing behind."""
        made: list[Kernel] = []

        async def make() -> None:
            made.append(await self.resume(checkpoint, beginning))

        try:
            await (make() if files is None else files(make))
        except BaseException:  # includes cancellation: nothing else owns the kernel. The files are already rolled back.
            for kernel in made:
                await kernel.discard()
            raise
        return made[0]

    async def look_at(self, checkpoint: Checkpoint) -> Kernel:
        """Create an isolated kernel from a checkpoint to inspect its variables. The caller discards it."""
        wanted = replace(self._wanted, kept=None)  # no later host continues it
        try:
            return await self._make(checkpoint.moment.copy, wanted, Anew(stay_in=wanted.setup.stay_in, to_inspect=True))
        except LaunchError as error:
            raise CheckpointError(f"no kernel could be made from checkpoint {checkpoint.id}: {error}") from error


@asynccontextmanager
async def stopped(kernel: Kernel | None) -> AsyncIterator[None]:
    """Stop all processes of a session with a live kernel during a restore, because they could write to its files.

    Raises:
        CheckpointError: A process cannot be stopped.
    """
    if kernel is None or kernel.death is not None:
        yield
        return
    try:
        if left := await kernel.freeze():
            raise CheckpointError(
                f"{left} of the session's processes cannot be stopped, and could write to files during the restore: "
                "wait a moment, or end them"
            )
        yield
    except BaseException:  # includes cancellation: the processes continue, if the kernel is still the session's
        kernel.thaw()
        raise


@dataclass(eq=False)
class Redo:
    """An undo that can be reverted.

    Attributes:
        undid: The undo in the session's state, once completed. It owns its snapshots.
        checkpoints: Its checkpoints that exist, in the same order.
        ended: Why there were no earlier checkpoints before the undo.
        files: The files that the undo changed, before and after it, and the trash entry of those that it replaced. None if it
            changed none.
    """

    undid: Undid
    checkpoints: list[Checkpoint]
    ended: str = ""
    files: tuple[Interval, Entry] | None = None

    def drop(self) -> None:
        """Free the checkpoints and snapshots."""
        for checkpoint in self.checkpoints:
            checkpoint.discard()
        self.undid.pairs.clear(0)
        self.drop_files()

    def drop_files(self) -> None:
        """Free the snapshots of the files that the undo changed."""
        for snapshot in (self.undid.before, self.undid.after):
            if snapshot is not None:
                self.undid.pairs.release(snapshot)


class CheckpointList:
    """The checkpoints of one session.

    Attributes:
        files: Snapshots and restores the session's files.
        cells: The session's cells.
        origin: The session, as sessions that begin with a checkpoint need to know it.
    """

    def __init__(self, origin: Origin, cells: Cells, files: CheckpointFiles) -> None:
        self.origin = origin
        self.cells = cells
        self.files = files
        self._kept: list[Checkpoint] = []
        self._redos: list[Redo] = []

    @property
    def past(self) -> SessionState:
        """The session's state."""
        return self.cells.past

    @property
    def fresh(self) -> bool:
        """Whether the current state is a fresh kernel's."""
        return self.past.state == self.past.fresh

    def all(self) -> list[Checkpoint]:
        """Return the usable checkpoints, oldest first."""
        for checkpoint in [one for one in self._kept if not one.alive]:
            self.forget(checkpoint)
        return [*self._kept]

    async def copy(
        self, kernel: Kernel, *, name: str = "", automatic: bool, passing: bool = False, again: bool = False
    ) -> Checkpoint | None:
        """Create a checkpoint of a kernel while no cell can run.

        Args:
            kernel: The kernel.
            name: The checkpoint's name.
            automatic: Whether it is an automatic checkpoint.
            passing: As for `passing_checkpoint`.
            again: Whether to skip the copy if no task ran since the last one. Otherwise, the copy is a new state.

        Returns:
            The checkpoint; None if the copy was skipped.

        Raises:
            CheckpointError: The kernel's state would not survive, or the copy does not answer.
            KernelDiedError: The kernel has ended.
        """
        past = self.past
        moved_on = again or (past.changing and not automatic)
        copy = await kernel.family.copy(kernel.control, functools.partial(answer_to, kernel), again=again)
        if copy is None:
            return None
        if moved_on:
            past.begin()
        if isinstance(copy, Refusal):
            if copy.pending:
                past.goes_on_changing()
            raise CheckpointError(copy.reason)
        saved = Saved.new(name, automatic, kernel.count, copy.family.number, copy.number, passing, copy.pending)
        past.commit(Copied(saved))
        if copy.pending:
            past.goes_on_changing()
        checkpoint = self._checkpoint(past.checkpoints[saved.id], copy)
        self._kept.append(checkpoint)
        return checkpoint

    @property
    def redos(self) -> list[Redo]:
        """The undos that can be reverted, oldest first. The others are dropped."""
        redoable = {id(undid) for undid in self.past.redoable}
        dropped = [redo for redo in self._redos if id(redo.undid) not in redoable]
        self._redos = [redo for redo in self._redos if id(redo.undid) in redoable]
        for redo in dropped:
            redo.drop()
        return self._redos

    def drop_redos(self) -> bool:
        """Drop all undos that can be reverted. Return whether there were any."""
        dropped = self.redos
        if dropped:
            self.past.commit(RedosDropped(0))
            self._redos = []
        for redo in dropped:
            redo.drop()
        return bool(dropped)

    def _checkpoint(self, saved: Saved, copy: Copy) -> Checkpoint:
        """Return a checkpoint of a session's state, possibly an earlier host's."""
        return Checkpoint(saved, Moment(copy, saved.line, saved.state, self.past, self.origin), self)

    def forget(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint that was dropped."""
        if checkpoint in self._kept:
            self._kept.remove(checkpoint)
        if checkpoint.id in self.past.checkpoints:
            self.past.commit(Dropped(checkpoint.id))

    def note_files(self, checkpoint: Checkpoint) -> None:
        """Handle a change of a checkpoint's files."""
        saved, files = self.past.checkpoints.get(checkpoint.id), (checkpoint.snapshot, checkpoint.without_files)
        if saved is not None and files != (saved.files, saved.without_files):
            self.past.commit(Filed(checkpoint.id, *files))

    def begin_going(self, checkpoint: str, way: Way, lost: int = 0, since: int = 0) -> Instant:
        """Record, before any action, that the session is about to change to another state (`Going`). Return the time."""
        began = Instant.before_changes()
        self.past.commit(Going(checkpoint, way, began, lost, since))
        self.past.log.settle()
        return began

    def go_to_memory_of(self, checkpoint: Checkpoint, began: Instant) -> None:
        """Record that the kernel continues from a checkpoint while files are unchanged (`SessionState.go_to`)."""
        past = self.past
        past.go_to(checkpoint.moment.past, checkpoint.moment.state, began)
        if checkpoint.moment.copy.pending:
            past.goes_on_changing()
