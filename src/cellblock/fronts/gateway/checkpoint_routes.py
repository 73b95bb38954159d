"""Checkpoints of a session, and its branches."""

from __future__ import annotations

from fastapi import APIRouter

from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.routes import add
from cellblock.operations.checkpoints import (
    Adopt,
    Checkpoints,
    Diff,
    DropCheckpoint,
    Fork,
    MakeCheckpoint,
    Redo,
    Restore,
    RestoreTrash,
    Trash,
    Undo,
    VersionsOfFile,
)

router = APIRouter(tags=["Checkpoints"], route_class=CheckedRoute)

for _of_checkpoints in (MakeCheckpoint, Checkpoints, Restore, DropCheckpoint, Diff, VersionsOfFile):
    add(router, _of_checkpoints)
for _of_states in (Undo, Redo, Trash, RestoreTrash, Fork, Adopt):
    add(router, _of_states)
