"""`Session.diff`: what has changed since a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cellblock.host import exchange
from cellblock.model.variables import VariableChanges, diff_variables
from cellblock.snapshots.snapshots import FileChange, FileChanges

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.cells import Cells

_SECONDS = 2.0
"""How long each of the two states may take to make digests of its values. What is not reached may have changed."""


@dataclass(frozen=True, slots=True)
class StateChanges:
    """What has changed between a checkpoint and now.

    Attributes:
        variables: New, changed and deleted variables, and those that cannot be compared.
        files: New, changed and deleted files; None if the checkpoint holds no files (``files="copy"``).
    """

    variables: VariableChanges
    files: FileChanges | None = None

    def __bool__(self) -> bool:
        return bool(self.variables) or (self.files is not None and self.files != FileChanges())

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {"variables": self.variables.to_dict(), "files": None if self.files is None else asdict(self.files)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StateChanges:
        """Return the changes that `to_dict` has written."""
        files = data["files"]
        if files is not None:
            files = FileChanges(**{kind: tuple(FileChange(**one) for one in files[kind]) for kind in files})
        return cls(VariableChanges.from_dict(data["variables"]), files)


async def diff(cells: Cells, checkpoints: Checkpoints, checkpoint: Checkpoint) -> StateChanges:
    """Compare a session with a checkpoint; see `Session.diff`. Nothing of the session is changed, its files included.

    Args:
        cells: What runs in the session.
        checkpoints: Its checkpoints.
        checkpoint: The checkpoint.
    """
    checkpoints.check(checkpoint)
    after = await exchange.survey(cells.run_silently, _SECONDS)
    kernel = await checkpoints.look_at(checkpoint)
    try:
        before = await exchange.survey(lambda code, _: cells.run_elsewhere(kernel, code), _SECONDS)
    finally:
        await kernel.close()
    files = None if checkpoint.snapshot is None else await checkpoints.files.diff(checkpoint.snapshot)
    return StateChanges(diff_variables(before, after), files)
