"""`Session.diff`: the changes since a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellblock.errors import CellblockError
from cellblock.host import exchange
from cellblock.model.checkpoints import StateChanges
from cellblock.model.variables import diff_variables

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.cells import Cells

_SECONDS = 2.0
"""Time limit for hashing the values of each of the two states. Values beyond it count as possibly changed."""


async def diff(cells: Cells, checkpoints: Checkpoints, wanted: Checkpoint | str) -> StateChanges:
    """Compare a session with a checkpoint; see `Session.diff`. The session and its files are not changed.

    Args:
        cells: The session's cells.
        checkpoints: Its checkpoints.
        wanted: The checkpoint, its name or its id.
    """
    checkpoint = checkpoints.find(wanted)
    try:
        after = await exchange.survey(cells.run_silently, _SECONDS)
        kernel = await checkpoints.resuming.look_at(checkpoint)
        try:
            before = await exchange.survey(lambda code, _: cells.run_elsewhere(kernel, code), _SECONDS)
        finally:
            await kernel.close()
        files = None if checkpoint.snapshot is None else await checkpoints.files.diff(checkpoint.snapshot)
    except CellblockError:
        checkpoint.check()  # nothing has failed: it was dropped meanwhile, or the session was closed
        raise
    return StateChanges(diff_variables(before, after), files)
