"""Making, finding and ending sessions."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.requests import HTTPConnection

from cellblock.errors import AccessError, InvalidInputError
from cellblock.fronts.gateway.access import check_scope, link_of, needs, settings_of
from cellblock.fronts.gateway.answers import json_response
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.models import (
    KernelCreateRequest,
    KernelModel,
    KernelStatusResponse,
    SessionCreateRequest,
)
from cellblock.fronts.gateway.routes import add, with_age
from cellblock.host.checks import only_names
from cellblock.operations.sessions import Create, Destroy, List, Status
from cellblock.service.store.tokens import Token

router = APIRouter(route_class=CheckedRoute)

Read = Annotated[Token, Depends(needs("read"))]
ReadAny = Annotated[Token, Depends(needs("read", any_session=True))]
Run = Annotated[Token, Depends(needs("run"))]
RunAny = Annotated[Token, Depends(needs("run", any_session=True))]


@router.post("/kernels", status_code=201, response_model=KernelModel, tags=["Kernels"], summary="Make a session")
async def create_kernel(request: Request, wanted: KernelCreateRequest, caller: RunAny) -> Response:
    """Make a session. It is an error if there is one of that name."""
    if wanted.name and wanted.session_name and wanted.name != wanted.session_name:
        raise InvalidInputError("name and session_name must be equal: give one of them")
    name = wanted.name or wanted.session_name or f"session-{secrets.token_hex(4)}"
    return json_response(await create(request, caller, name, wanted.options, wanted.tags, fresh=True), 201)


async def _listed(request: Request, caller: Token, asked: List) -> list[dict[str, Any]]:
    """Return those sessions that the token is for."""
    records = await link_of(request).call(asked)
    return [record for record in records if not caller.session or caller.session in (record["name"], record["kernel_id"])]


add(router, List, _listed, any_session=True, tag="Kernels")


@router.get("/kernels/{session}", response_model=KernelStatusResponse, tags=["Kernels"], summary="Get the status of a session")
async def get_kernel(request: Request, session: str, _: Read) -> Response:
    """Return the status of a session."""
    record = await link_of(request).call(Status(session))
    return json_response({"alive": record["status"] in ("running", "idle"), "kernel": with_age(record)})


async def _destroyed(request: Request, _: Token, asked: Destroy) -> bool:
    """Destroy a session. An unknown one is an error, as in KernelBox."""
    link = link_of(request)
    await link.call(Status(asked.session))
    return await link.call(asked)


add(router, Destroy, _destroyed, tag="Kernels")


@router.post("/sessions/{session}", response_model=KernelModel, tags=["Sessions"], summary="Get or make a session")
async def get_or_create(
    request: Request, session: str, caller: Run, wanted: Annotated[SessionCreateRequest | None, Body()] = None
) -> Response:
    """Return the session of this name, and create it if it is missing."""
    wanted = wanted or SessionCreateRequest(tags={}, options={})
    return json_response(await create(request, caller, session, wanted.options, wanted.tags))


async def create(
    request: HTTPConnection,
    caller: Token,
    name: str,
    options: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    *,
    fresh: bool = False,
    kernel_type: str = "",
) -> dict[str, Any]:
    """Create a session, or return the existing one with this name.

    Args:
        request: The request.
        caller: The caller's token.
        name: The session's name.
        options: The options, which only some callers may choose. An existing session must have them.
        tags: The labels.
        fresh: Whether an existing session is an error.
        kernel_type: The kernelspec; empty for the default of the options or the settings.

    Raises:
        AccessError: The caller may not have this session, or may not choose its options.
        CellblockError: The daemon's error.
    """
    if caller.session and name != caller.session:
        raise AccessError("this token is for another session")
    if options and not only_names(options):
        check_scope(caller, "admin", ", which the options of a session need")  # they can switch the sandbox off
    setup: GatewayOptions = request.app.state.options
    here = {**await _workspace(setup, name), "python": sys.executable}
    chosen = {"kernel_type": kernel_type} if kernel_type else {}
    given = settings_of(request).session_options({**here, **setup.session_options, **(options or {}), **chosen})
    asked = Create(name, given, dict(tags or {}), fresh, chosen=tuple({**(options or {}), **chosen}))
    return with_age(await link_of(request).call(asked))


async def _workspace(setup: GatewayOptions, name: str) -> dict[str, str]:
    """Return the options for the session's workspace. If each session has its own directory, create it."""
    if setup.workspaces is None:
        return {} if setup.embedded else {"current_dir": os.getcwd()}
    path = workspace_in(setup.workspaces, name)
    try:
        await asyncio.to_thread(path.mkdir, mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"session {name[:100]!r} needs a directory, which cannot be made: {error.strerror}") from error
    return {"working_dir": str(path)}


def workspace_in(directory: Path, name: str) -> Path:
    """Return the path of a session's directory within another one.

    The name begins with ``session-``: names such as ``.git`` or ``node_modules`` would mean something to programs in the
    directory of another session.

    Raises:
        InvalidInputError: The session's name cannot be part of a directory's name.
    """
    if not name.strip(".") or "/" in name or "\0" in name:
        raise InvalidInputError(f"session {name[:100]!r} cannot be the name of a directory: choose another one")
    return directory.absolute() / f"session-{name}"
