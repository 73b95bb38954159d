"""An operation that declares a route has it in HTTP, with nothing more to write."""

from __future__ import annotations

import re

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import Match

from cellblock.fronts.gateway import app
from cellblock.fronts.gateway.routes import derived
from cellblock.operations import OPERATIONS

ROUTES = {kind.op: kind.route for kind in OPERATIONS.values() if kind.route is not None}


def test_each_declared_route_is_there_and_no_other_takes_its_requests() -> None:
    routers = [part.router for part in app._PARTS]
    routes = [route for router in (*routers, derived(routers)) for route in router.routes]
    wrong = {}
    for op, route in ROUTES.items():
        path = re.sub(r"{\w+:path}", "a/b", route.path)
        scope = {"type": "http", "method": route.method, "path": re.sub(r"{\w+}", "x", path), "headers": []}
        first = next((one for one in routes if one.matches(scope)[0] is Match.FULL), None)
        if getattr(first, "path", "") != route.path:
            wrong[op] = first
    assert wrong == {}


def test_a_route_that_another_router_has_is_not_derived_and_the_others_have_their_groups() -> None:
    other = APIRouter()

    @other.post("/sessions/{session}/undo")
    async def undo() -> None: ...

    groups = {route.path: route.tags for route in derived([other]).routes if isinstance(route, APIRoute)}
    assert "/sessions/{session}/undo" not in groups
    assert groups["/sessions/{session}/redo"] == ["Checkpoints"]
    assert groups["/kernels/{session}/restart"] == ["Kernels"]
    assert groups["/executions/{execution}"] == ["Execution"]
    assert groups["/sessions/{session}/complete"] == ["Sessions"]
