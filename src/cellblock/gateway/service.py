"""What the gateway says of itself."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from cellblock import __version__

router = APIRouter(tags=["Service"])


class Link(BaseModel):
    """Where something is."""

    href: str
    description: str


class Root(BaseModel):
    """What the gateway offers."""

    service: str
    links: dict[str, Link]


class Health(BaseModel):
    """Whether the gateway works."""

    status: Literal["ok"]
    service: str
    version: str


@router.get("/", summary="List what the gateway offers")
async def root() -> Root:
    """Name the pages that describe this service."""
    pages = {"swagger": ("/docs", "Swagger UI"), "redoc": ("/redoc", "API reference"), "openapi": ("/openapi.json", "OpenAPI")}
    return Root(service="cellblock", links={name: Link(href=href, description=text) for name, (href, text) in pages.items()})


@router.get("/health", summary="Whether the gateway works")
async def health() -> Health:
    """Answer at once; the daemon is not asked."""
    return Health(status="ok", service="cellblock", version=__version__)
