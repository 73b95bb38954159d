"""The gateway's application: ``uvicorn cellblock.fronts.gateway.app:app``, or `cellblock serve`."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from cellblock.common.version import __version__
from cellblock.errors import CellblockError
from cellblock.fronts.gateway import (
    approval_routes,
    console,
    editor_routes,
    events,
    execution_routes,
    file_routes,
    forwarding,
    jupyter,
    kernelspecs,
    metrics,
    notebook_routes,
    overview_routes,
    pages,
    ports,
    program_routes,
    save_routes,
    service,
    session_routes,
)
from cellblock.fronts.gateway.access import problem_for
from cellblock.fronts.gateway.answers import invalid_response, problem_response
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.guard import Guard, Refused, is_public
from cellblock.fronts.gateway.head import with_head
from cellblock.fronts.gateway.models import ProblemModel
from cellblock.fronts.gateway.routes import derived
from cellblock.fronts.gateway.tracing import Traced
from cellblock.fronts.jupyter.kernels import JupyterKernels
from cellblock.fronts.problems import MEDIA_TYPE, Problem
from cellblock.fronts.where import open_link
from cellblock.service import settings
from cellblock.service.daemon.link import SessionLink
from cellblock.service.daemon.place import Place
from cellblock.service.store.tokens import Tokens

_SHOWN = 200
"""Characters of a path that an answer repeats."""

_CODES = {404: "not_found", 405: "method_not_allowed", 415: "unsupported_media_type"}


_SENT_BY_PAGES = ("Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "If-Range", "Last-Event-ID", "Range")
_READ_BY_PAGES = ("Accept-Ranges", "Content-Disposition", "Content-Range", "ETag", "Location", "Retry-After")
_PROBLEM: dict[str, Any] = {
    "description": "What is wrong (RFC 9457).",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemModel"}}},
}


_PARTS = (
    service,
    session_routes,
    execution_routes,
    events,
    file_routes,
    program_routes,
    ports,
    editor_routes,
    save_routes,
    approval_routes,
    overview_routes,
    console,
    metrics,
    jupyter,
    kernelspecs,
    notebook_routes,
)


class Gateway(FastAPI):
    """An application behind a guard. The outer applications run before FastAPI's code.

    Attributes:
        outside: The outermost application, which is called first, and calls `inside`.
    """

    outside: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.outside(scope, receive, send)

    async def inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that has passed the guard."""
        await super().__call__(scope, receive, send)


def make_app(options: GatewayOptions | None = None, place: Place | None = None, link: SessionLink | None = None) -> Gateway:
    """Create a gateway's application.

    Args:
        options: The options.
        place: The directory of the daemon and the tokens; the user's own by default.
        link: The link to other sessions. Then the only token is the one in the options.
    """
    options = options or GatewayOptions()
    check = tokens = None
    if link is None:
        place = place or Place()
        place.prepare()
        link = open_link(place)
        tokens = Tokens(place.directory) if options.auth else None
        check = tokens.check() if tokens is not None else None
    daemon = link

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await app.state.kernels.close()
        await daemon.close()
        if check is not None:
            check.close()

    app = Gateway(
        title="cellblock",
        summary="Sandboxed, stateful IPython sessions for AI agents.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # `Traced` does that. FastAPI's own spans would be duplicates, and name sessions and exceptions.
        telemetry={"tracing": False, "logs": False},
    )
    app.openapi = lambda: described(app)  # type: ignore[method-assign]  # as FastAPI's documentation has it
    app.state.link = link
    app.state.tokens = tokens
    app.state.settings = settings.current()
    app.state.options = options
    app.state.kernels = JupyterKernels(link)
    app.state.checks = service.Checks(link)
    app.state.notebooks = notebook_routes.Notebooks()
    routers = [part.router for part in _PARTS]
    for router in (*routers, derived(routers)):
        app.include_router(router, responses={"default": _PROBLEM})
    pages.add_to(app)
    _answer_failures(app)
    guarded = Guard(app.inside, options, check, _uploads())
    app.state.pages = ports.PageHosts(
        readable(with_head(guarded), options.allowed_origins),
        functools.partial(forwarding.LinkedConnection, link),
        check,
        options.token,
        ports.Names.parse(options.ports_domain),
    )
    app.outside = Traced(metrics.Meter(app.state.pages))
    return app


def _answer_failures(app: FastAPI) -> None:
    """Answer each failure with a problem (RFC 9457)."""
    app.add_exception_handler(CellblockError, _on_error)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_failure)


def _uploads() -> list[BaseRoute]:
    routes = [*file_routes.router.routes, *save_routes.router.routes]
    return [route for route in routes if getattr(route, "endpoint", None) in (file_routes.write_file, save_routes.load)]


def readable(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Let web pages of some origins read answers (CORS). They send tokens like any other client; there are no cookies."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"),
        allow_headers=_SENT_BY_PAGES,
        expose_headers=_READ_BY_PAGES,
        allow_private_network=True,
    )


def described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description: FastAPI's own, plus the token requirement of nearly all routes."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        bearer = {"type": "http", "scheme": "bearer", "description": "A token: 'cellblock tokens create' makes one."}
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {"token": bearer}
        components.setdefault("schemas", {})["ProblemModel"] = ProblemModel.model_json_schema()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # FastAPI's own form of the problem documents used here
        schema["security"] = [{"token": []}]
        for path, operations in schema["paths"].items():
            if is_public(path):
                for operation in operations.values():
                    operation["security"] = []
    return app.openapi_schema or {}


def methods_of(schema: dict[str, Any], path: str) -> list[str]:
    """Return all methods of a path; a router names only the methods of the first matching route."""
    found = set()
    for template, operations in schema["paths"].items():
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path):
            found |= {method.upper() for method in operations}
    return sorted(found)


def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CellblockError)
    return problem_response(problem_for(request, error))


def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return problem_response(error.problem)
    detail, headers, path = str(error.detail), dict(error.headers or {}), request.url.path
    if error.status_code == 405:
        # The pages are not in the description; the router names their methods.
        headers["Allow"] = ", ".join(methods_of(described(request.app), path)) or headers.get("Allow", "GET")
        detail = f"{path[:_SHOWN]} takes {headers['Allow']}, and not {request.method}; /docs describes the API"
    elif error.status_code == 404 and "route" not in request.scope:
        detail = f"there is nothing at {path[:_SHOWN]}; /docs describes the API"
    response = problem_response(Problem(error.status_code, _CODES.get(error.status_code, "bad_request"), detail))
    response.headers.update(headers)
    return response


def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    body = getattr(request.scope.get("route"), "body_field", None)
    models = () if body is None else (body.field_info.annotation, *get_args(body.field_info.annotation))  # X, or X | None
    return invalid_response(error, [name for model in models for name in getattr(model, "model_fields", ())])


def _on_failure(_: Request, error: Exception) -> Response:
    """Answer an unexpected error. The server logs it."""
    return problem_response(Problem(500, "internal", f"the gateway failed: {type(error).__name__}; see its log"))


def __getattr__(name: str) -> Any:
    """Create ``app``, the application with options from the settings, when a server asks for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()["app"] = make_app()
    return made
