"""The routes of operations that need no code of their own: a declaration with a `Route` is enough."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.routes import add
from cellblock.operations import OPERATIONS
from cellblock.operations.base import Request, Route

_TAGS = {"executions": "Execution", "saving": "Sessions"}
"""Groups in the description, by module of the operations, if they are not the module's name."""


def derived(others: Iterable[APIRouter]) -> APIRouter:
    """Return a router for all operations with a route that is in none of the other routers."""
    known = [route for other in others for route in other.routes if isinstance(route, APIRoute)]
    taken = {(method, route.path) for route in known for method in route.methods or ()}
    router = APIRouter(route_class=CheckedRoute)
    for kind in OPERATIONS.values():
        if kind.route is not None and (kind.route.method, kind.route.path) not in taken:
            add(router, kind, tag=_tag(kind, kind.route))
    return router


def _tag(kind: type[Request[Any]], route: Route) -> str:
    if route.path.startswith("/kernels"):
        return "Kernels"
    module = kind.__module__.rpartition(".")[2]
    return _TAGS.get(module, module.capitalize())
