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
    Restore,
    Undo,
    VersionsOfFile,
)

router = APIRouter(tags=["Checkpoints"], route_class=CheckedRoute)

for operation in (MakeCheckpoint, Checkpoints, Restore, DropCheckpoint, Diff, VersionsOfFile, Undo, Fork, Adopt):
    add(router, operation)
