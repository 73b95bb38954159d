"""Changes of the network of a running session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request

from cellblock.fronts.gateway.access import link_of
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.routes import add
from cellblock.operations.network import ChangeNetwork
from cellblock.service.store.tokens import Token

router = APIRouter(tags=["Network"], route_class=CheckedRoute)


async def _changed(request: Request, caller: Token, asked: ChangeNetwork) -> dict[str, Any]:
    return dict(await link_of(request).call(replace(asked, by=caller.name)))


add(router, ChangeNetwork, _changed)
