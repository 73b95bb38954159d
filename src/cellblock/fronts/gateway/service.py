"""Information about the gateway: version, limits, health."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from cellblock.common.version import __version__
from cellblock.errors import BusyError, CellblockError
from cellblock.fronts.gateway.access import needs
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.operations.sessions import About
from cellblock.service.store.tokens import SCOPES, Scope, Token

if TYPE_CHECKING:
    from cellblock.service.daemon.link import SessionLink

_log = logging.getLogger("cellblock.gateway")
_FRESH, _PATIENCE = 1.0, 5.0
router = APIRouter(tags=["Service"], route_class=CheckedRoute)


class Link(BaseModel):
    """Where something is."""

    href: str
    description: str


class Root(BaseModel):
    """The services that the gateway offers."""

    service: str
    links: dict[str, Link]


class Health(BaseModel):
    """Whether code can be run."""

    status: Literal["ok", "failing"]
    service: str
    version: str
    problem: str = Field(default="", description="Why no code can run now; empty if code can run.")


@router.get("/", summary="List what the gateway offers")
async def root() -> Root:
    """Name the pages that describe this service."""
    pages = {"swagger": ("/docs", "Swagger UI"), "redoc": ("/redoc", "API reference"), "openapi": ("/openapi.json", "OpenAPI")}
    return Root(service="cellblock", links={name: Link(href=href, description=text) for name, (href, text) in pages.items()})


class Checks:
    """Checks whether code can be run, at most once a second, because callers need no token."""

    def __init__(self, link: SessionLink) -> None:
        self._link = link
        self._lock = asyncio.Lock()
        self._problem = ""
        self._asked = -math.inf

    async def problem(self) -> str:
        """Return why no code can be run now; empty if it can. It names no paths."""
        async with self._lock:
            if time.monotonic() - self._asked > _FRESH:
                self._problem = await self._ask()
                self._asked = time.monotonic()
            return self._problem

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE):
                failing = (await self._link.call(About())).get("failing", "")
        except TimeoutError:
            return f"the daemon has not answered within {_PATIENCE:g} s"
        except BusyError:
            return ""  # partly working
        except CellblockError as error:
            _log.warning("the daemon cannot be asked: %s", error)
            return "the daemon is not running and cannot be started: see the log"
        return f"nothing can be stored: {failing}" if failing else ""


class Caller(BaseModel):
    """The name and permissions of a token."""

    name: str
    scopes: list[Scope] = Field(description="Its scopes, including implied ones: read, run, approve, admin.")
    session: str = Field(description="The only session that it allows; empty for all.")
    expires: float | None = Field(description="When it expires, in seconds since the epoch; null: never.")
    version: str = Field(description="The version of cellblock that answers.")


@router.get("/whoami", summary="Get what the token is for")
async def whoami(caller: Annotated[Token, Depends(needs("read", any_session=True))]) -> Caller:
    """Return what the token of the request may do."""
    scopes = [scope for scope in SCOPES if caller.may(scope)]
    return Caller(name=caller.name, scopes=scopes, session=caller.session, expires=caller.expires, version=__version__)


@router.get("/health", summary="Whether code can be run", responses={503: {"model": Health, "description": "It cannot."}})
async def health(request: Request, response: Response) -> Health:
    """Ask the daemon, at most once in a second, and start it if necessary. 503 if no code can be run now."""
    checks: Checks = request.app.state.checks
    problem = await checks.problem()
    response.status_code = 503 if problem else 200
    return Health(status="failing" if problem else "ok", service="cellblock", version=__version__, problem=problem)
