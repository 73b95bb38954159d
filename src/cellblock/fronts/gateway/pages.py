"""Swagger UI and ReDoc for the description of the API, without external resources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import fastapi_offline
from fastapi import APIRouter
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.staticfiles import StaticFiles

from cellblock.fronts.gateway.guard import STATIC

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_TITLE = "cellblock"
_OPENAPI = "openapi.json"
_FILES = STATIC.strip("/")  # URLs are relative, so that a proxy can put the gateway below any path
_ICON = f"{_FILES}/favicon.png"
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the pages: they load nothing from other servers."""


@router.get("/docs")
async def swagger() -> HTMLResponse:
    """Show the description with Swagger UI."""
    return _confined(
        get_swagger_ui_html(
            openapi_url=_OPENAPI,
            title=_TITLE,
            swagger_js_url=f"{_FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{_FILES}/swagger-ui.css",
            swagger_favicon_url=_ICON,
        )
    )


@router.get("/redoc")
async def redoc() -> HTMLResponse:
    """Show the description with ReDoc."""
    return _confined(
        get_redoc_html(
            openapi_url=_OPENAPI,
            title=_TITLE,
            redoc_js_url=f"{_FILES}/redoc.standalone.js",
            redoc_favicon_url=_ICON,
            with_google_fonts=False,
        )
    )


def _confined(page: HTMLResponse) -> HTMLResponse:
    page.headers["Content-Security-Policy"] = _POLICY
    return page


def add_to(app: FastAPI) -> None:
    """Add the pages and their resources to an application."""
    app.include_router(router)
    app.mount(STATIC.rstrip("/"), StaticFiles(directory=Path(fastapi_offline.__file__).with_name("static")))
