"""Takes a session to an earlier state: its files and its kernel, or neither."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cellblock.errors import CheckpointError
from cellblock.host.kernels.past import Instant
from cellblock.model.checkpoints import Changes

if TYPE_CHECKING:
    from cellblock.host.checkpoints.automatic import AutomaticCheckpoints
    from cellblock.host.checkpoints.branches import Beginning
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.files import CheckpointFiles
    from cellblock.host.checkpoints.resuming import Resuming
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.kernels.past import Past
    from cellblock.host.snapshots import Aside, Snapshot
    from cellblock.host.snapshots.times import Spans


class GoingBack:
    """One move of a session to the state of a checkpoint: `prepare`, then `commit`. A move that fails leaves nothing.

    Attributes:
        changes: The files that were brought back.
        began: When it began. Files are brought back from then on.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        files: CheckpointFiles | None,
        resuming: Resuming,
        automatic: AutomaticCheckpoints,
        past: Past,
        *,
        within: Spans | None = None,
        between: Sequence[Snapshot] = (),
        aside: Aside | None = None,
        beginning: Beginning | None = None,
        began: Instant | None = None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            checkpoint: The checkpoint.
            files: The session's files; None to leave them as they are.
            resuming: Makes the kernel.
            automatic: The session's automatic checkpoints.
            past: Its history.
            within: Restore only files that were changed in these spans.
            between: See `Snapshots.restore`.
            aside: See `Snapshots.restore`.
            beginning: As for `Resuming.resume`.
            began: When an earlier host has begun it: files that it has brought back are of this move.
        """
        self.changes = Changes()
        self._checkpoint = checkpoint
        self._files = files
        self._resuming = resuming
        self._automatic = automatic
        self._past = past
        self._within = within
        self._between = between
        self._aside = aside
        self._beginning = beginning
        self._kernel: Kernel | None = None
        self.began = began or Instant.before_changes()

    async def prepare(self) -> Kernel:
        """Restore the files, if the checkpoint holds some; then make the kernel, which reopens them."""
        try:
            if self._checkpoint.snapshot is None or self._files is None:
                await self._make_kernel()
            else:
                own = not self._checkpoint.elsewhere
                self.changes = await self._files.restore(
                    self._checkpoint.snapshot,
                    self._make_kernel,
                    within=self._within,
                    between=self._between,
                    own=own,
                    aside=self._aside,
                )
        except BaseException:  # also a cancellation: nothing else owns the kernel. The files are rolled back by now.
            if self._kernel is not None:
                await self._kernel.discard()
            raise
        assert self._kernel is not None
        return self._kernel

    async def _make_kernel(self) -> None:
        self._kernel = await self._resuming.resume(self._checkpoint, self._beginning)

    def commit(self) -> None:
        """Record that the session has the checkpoint's state, when the kernel has taken its place."""
        with_files = self._within is not None or self._checkpoint.snapshot is not None
        moment = self._checkpoint.moment
        of_branch = not with_files and moment.branch is None and moment.history is not self._past
        branch = moment.history.spans_of(moment.state) if of_branch else ()
        self._past.go_to(moment.past, moment.state, with_files=with_files, branch=branch)
        files = self._files if self._within is not None and self._checkpoint.snapshot is not None else None
        if files is None or not files.origins.complete:  # otherwise it is known of each file whose it was
            self._past.brought_back(self.began)
        if self._files is not None and self._within is not None:
            self._past.record.write("origins", self._files.origins.last)
        if self._checkpoint.moment.copy.pending:
            self._past.goes_on_changing()
        self._automatic.gone_to(self._checkpoint)
        self._past.record.settle()


class StartingAgain:
    """One move of a session to the fresh kernel that preceded all cells of the line.

    Attributes:
        begun: Whether it has begun to replace the kernel: then the state of these cells is left, even if the move fails.
    """

    def __init__(self, kernels: KernelSlot, past: Past) -> None:
        """Prepare nothing yet.

        Args:
            kernels: The session's kernels.
            past: Its history.
        """
        self.begun = False
        self._kernels = kernels
        self._past = past
        self._left = [cell.number for cell in past.line]

    async def renew(self) -> None:
        """Replace the kernel with a fresh one."""
        self.begun = True
        try:
            await self._kernels.renew(force=True)
        finally:  # also if the caller is cancelled: the kernel is replaced nevertheless
            self.leave()

    def leave(self) -> None:
        """Mark the cells as abandoned."""
        self._past.abandon(self._left)


@asynccontextmanager
async def stopped(kernel: Kernel | None) -> AsyncIterator[None]:
    """Stop all processes of a session while files are brought back and its kernel is replaced: they could write to them.

    Args:
        kernel: The session's kernel, which may have died; None if there is none, or nothing to bring back.

    Raises:
        CheckpointError: A process cannot be stopped.
    """
    if kernel is None or kernel.death is not None:
        yield
        return
    try:
        if left := await kernel.freeze():
            raise CheckpointError(
                f"{left} of the session's processes cannot be stopped, and could write to files that are brought back: "
                "wait a moment, or end them"
            )
        yield
    except BaseException:  # also a cancellation: the processes continue, if the kernel is still the session's
        kernel.thaw()
        raise
