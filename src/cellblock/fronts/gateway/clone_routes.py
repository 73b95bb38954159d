"""The changes of sessions that work in a clone of a repository."""

from __future__ import annotations

from fastapi import APIRouter

from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.routes import add
from cellblock.operations.clones import CloneApply, CloneDiff, CloneFetch

router = APIRouter(tags=["Clones"], route_class=CheckedRoute)

for _of_clones in (CloneDiff, CloneFetch, CloneApply):
    add(router, _of_clones)
