"""`Session.diff`: what has changed since a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellblock.model.variables import VariableChanges, diff_variables

if TYPE_CHECKING:
    from cellblock.host.session import Session

_SECONDS = 2.0
"""How long each of the two states may take to make digests of its values. What is not reached may have changed."""


@dataclass(frozen=True, slots=True)
class StateChanges:
    """What has changed between a checkpoint and now.

    Attributes:
        variables: New, changed and deleted variables, and those that cannot be compared.
    """

    variables: VariableChanges

    def __bool__(self) -> bool:
        return bool(self.variables)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {"variables": self.variables.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StateChanges:
        """Return the changes that `to_dict` has written."""
        return cls(VariableChanges.from_dict(data["variables"]))


async def diff(session: Session, branch: Session) -> StateChanges:
    """Compare the states of two sessions.

    Args:
        session: The one that is compared.
        branch: One that begins with a checkpoint, and has not started. It is closed.
    """
    after = await session.survey(_SECONDS)
    branch.begin_randomly(None, same=True)
    try:
        await branch.start()
        before = await branch.survey(_SECONDS)
    finally:
        await branch.close()
    return StateChanges(diff_variables(before, after))
