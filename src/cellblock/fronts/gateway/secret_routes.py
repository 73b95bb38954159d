"""The secrets of a session, and the requests that used them."""

from __future__ import annotations

from fastapi import APIRouter

from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.routes import add
from cellblock.operations.secrets import ListSecrets, RefreshSecret, RemoveSecret, Requests

router = APIRouter(tags=["Secrets"], route_class=CheckedRoute)

add(router, Requests)
add(router, ListSecrets)
add(router, RefreshSecret)
add(router, RemoveSecret)
