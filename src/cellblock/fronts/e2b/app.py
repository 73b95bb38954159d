"""The application for E2B's clients, with the paths of two E2B servers, which share only one path."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cellblock.errors import AccessError, CellblockError
from cellblock.fronts.e2b import file_routes, filesystem, processes
from cellblock.fronts.e2b.answers import as_json, as_text, read
from cellblock.fronts.e2b.contexts import Contexts, Workspace, contexts_of
from cellblock.fronts.e2b.executions import execute
from cellblock.fronts.e2b.published import Published
from cellblock.fronts.e2b.watching import Watchers
from cellblock.fronts.gateway.guard import Guard, Refused
from cellblock.fronts.gateway.tracing import Traced
from cellblock.fronts.problems import Problem, problem_of
from cellblock.service.store.tokens import Token, Tokens

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Receive, Scope, Send

    from cellblock.fronts.gateway.gateway_options import GatewayOptions
    from cellblock.service.daemon.link import SessionLink
    from cellblock.service.daemon.place import Place


class ContextRequest(BaseModel):
    """A request to create a context."""

    model_config = ConfigDict(strict=True)

    cwd: str | None = Field(None, max_length=4096)
    language: str | None = Field(None, max_length=40)


class E2BGuard(Guard):
    """The gateway's guard for E2B's clients."""

    def token_in(self, scope: Scope, headers: Headers, token: str) -> str:
        return headers.get("x-access-token") or super().token_in(scope, headers, token)


def make_app(options: GatewayOptions, link: SessionLink, place: Place, workspace: Workspace) -> ASGIApp:
    """Create the application.

    Args:
        options: The options of the guard.
        link: The link to the sessions.
        place: The directory of the tokens.
        workspace: The sessions' workspace.
    """
    check = Tokens(place.directory).check() if options.auth else None

    contexts = Contexts(link, workspace)
    programs = processes.Programs(link, contexts)
    watchers = Watchers(link, contexts)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await watchers.close()
        await programs.close()
        await link.close()
        if check is not None:
            check.close()

    upload = Route("/files", file_routes.upload, methods=["POST"])
    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/execute", execute, methods=["POST"]),
            Route("/contexts", make_context, methods=["POST"]),
            Route("/contexts", list_contexts, methods=["GET"]),
            Route("/contexts/{context}", remove_context, methods=["DELETE"]),
            Route("/contexts/{context}/restart", restart_context, methods=["POST"]),
            Route("/files", file_routes.download, methods=["GET"]),
            upload,
            *filesystem.ROUTES,
            *processes.ROUTES,
        ],
        exception_handlers={CellblockError: _on_error, HTTPException: _on_http, Exception: _on_failure},
        lifespan=lifespan,
    )
    app.state.link = link
    app.state.contexts = contexts
    app.state.programs = programs
    app.state.watchers = watchers
    app.state.max_upload = options.max_upload
    guarded = E2BGuard(allowed(app), options, check, [upload])
    return Traced(Published(guarded, options.publish, link, contexts) if options.publish else guarded)


def allowed(app: ASGIApp) -> ASGIApp:
    """Admit only callers that may run code in all sessions: a sandbox has several sessions, which share its files."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            check_caller(scope["cellblock.caller"])
        await app(scope, receive, send)

    return checked


def check_caller(caller: Token) -> None:
    """Check that a caller may run code in all sessions.

    Raises:
        AccessError: The caller may not.
    """
    if caller.session or not caller.may("run"):
        raise AccessError("this needs a token with the scope 'run', for all sessions")


async def health(_: Request) -> Response:
    """Report that this server runs."""
    return JSONResponse("OK")


async def make_context(request: Request) -> Response:
    wanted = await read(request, ContextRequest)
    return JSONResponse((await contexts_of(request).make(wanted.cwd, wanted.language)).to_dict())


async def list_contexts(request: Request) -> Response:
    return JSONResponse([one.to_dict() for one in await contexts_of(request).all()])


async def remove_context(request: Request) -> Response:
    await contexts_of(request).remove(request.path_params["context"])
    return JSONResponse(None)


async def restart_context(request: Request) -> Response:
    """Restart a context with a fresh kernel."""
    await contexts_of(request).restart(request.path_params["context"])
    return JSONResponse(None)


def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CellblockError)
    return _answer(request, problem_of(error))


def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return _answer(request, error.problem)
    detail = f"{request.method[:20]} {request.url.path[:200]}: {error.detail}; this server speaks a part of E2B's protocol"
    return _answer(request, Problem(error.status_code, "bad_request", detail))


def _on_failure(request: Request, error: Exception) -> Response:
    return _answer(request, Problem(500, "internal", f"the server failed: {type(error).__name__}; see its log"))


def _answer(request: Request, problem: Problem) -> Response:
    return (as_json if request.url.path == "/files" else as_text)(problem)
