"""`Session.diff`: what has changed since a checkpoint."""

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
"""How long each of the two states may take to make digests of its values. What is not reached may have changed."""


async def diff(cells: Cells, checkpoints: Checkpoints, wanted: Checkpoint | str) -> StateChanges:
    """Compare a session with a checkpoint; see `Session.diff`. Nothing of the session is changed, its files included.

    Args:
        cells: What runs in the session.
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
        checkpoint.check()  # nothing has failed: it was dropped meanwhile, or the session was ended
        raise
    return StateChanges(diff_variables(before, after), files)
