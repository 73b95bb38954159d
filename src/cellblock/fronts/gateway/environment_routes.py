"""Environments: packages with a name, for new sessions."""

from __future__ import annotations

from fastapi import APIRouter

from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.routes import add
from cellblock.operations.environments import CreateEnvironment, ListEnvironments, RemoveEnvironment, ShowEnvironment

router = APIRouter(tags=["Environments"], route_class=CheckedRoute)

for _of_environments in (ListEnvironments, ShowEnvironment, CreateEnvironment, RemoveEnvironment):
    add(router, _of_environments)
