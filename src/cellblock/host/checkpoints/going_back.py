"""Restore of a session's files and kernel, both or neither."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cellblock.errors import CheckpointError

if TYPE_CHECKING:
    from cellblock.host.checkpoints.automatic import AutomaticCheckpoints
    from cellblock.host.checkpoints.checkpoint import Beginning, Checkpoint
    from cellblock.host.checkpoints.resuming import Resuming
    from cellblock.host.checkpoints.workspace_snapshots import Then
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.pairs import Instant
    from cellblock.host.kernels.session_state import SessionState


class GoingBack:
    """A restore of a checkpoint in two phases, `prepare` and `commit`. A failed restore leaves nothing behind."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        resuming: Resuming,
        automatic: AutomaticCheckpoints,
        past: SessionState,
        files: Callable[[Then], Awaitable[object]] | None,
        began: Instant,
        *,
        beginning: Beginning | None = None,
        arrive: Callable[[], None] | None = None,
    ) -> None:
        """Store the arguments.

        Args:
            checkpoint: The checkpoint.
            resuming: Creates the kernel.
            automatic: The session's automatic checkpoints.
            past: The session's state.
            files: Restores files, and runs its argument before that is final; None to leave files unchanged.
            began: When the restore began. Tasks of the state may change files before `commit`.
            beginning: As for `Resuming.resume`.
            arrive: Records the new state, instead of `SessionState.go_to`.
        """
        self._checkpoint = checkpoint
        self._resuming = resuming
        self._automatic = automatic
        self._past = past
        self._files = files
        self._began = began
        self._beginning = beginning
        self._arrive = arrive
        self._kernel: Kernel | None = None

    async def prepare(self) -> Kernel:
        """Restore the files, if any, then create the kernel, which reopens them."""
        try:
            if self._files is None:
                await self._make_kernel()
            else:
                await self._files(self._make_kernel)
        except BaseException:  # includes cancellation: nothing else owns the kernel. The files are already rolled back.
            if self._kernel is not None:
                await self._kernel.discard()
            raise
        assert self._kernel is not None
        return self._kernel

    async def _make_kernel(self) -> None:
        self._kernel = await self._resuming.resume(self._checkpoint, self._beginning)

    def commit(self) -> None:
        """Record the checkpoint's state as the session's, after the kernel was replaced."""
        moment = self._checkpoint.moment
        if self._arrive is not None:
            self._arrive()
        else:
            branch = self._automatic.pairs_of_branch(moment.history, moment.state)
            self._past.go_to(moment.past, moment.state, self._began, branch, tasks=moment.copy.pending)
        if moment.copy.pending:
            self._past.goes_on_changing()
        self._automatic.gone_to(self._checkpoint)
        self._past.log.settle()


@asynccontextmanager
async def stopped(kernel: Kernel | None) -> AsyncIterator[None]:
    """Stop all processes of a session during a restore, because they could write to its files.

    Args:
        kernel: The session's kernel, possibly dead; None without a kernel or files to restore.

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
