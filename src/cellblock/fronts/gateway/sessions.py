"""Making, finding and ending sessions."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi.requests import HTTPConnection

from cellblock.errors import AccessError, InvalidInputError
from cellblock.fronts.gateway.access import check_scope, link_of, needs, needs_of_any, settings_of
from cellblock.fronts.gateway.answers import json_response
from cellblock.fronts.gateway.models import (
    Done,
    KernelCreateRequest,
    KernelDestroyedResponse,
    KernelListResponse,
    KernelModel,
    KernelStatusResponse,
    KernelWipeResponse,
    SessionCreateRequest,
)
from cellblock.fronts.gateway.options import GatewayOptions
from cellblock.model.sessions import SessionRecord
from cellblock.operations.sessions import Create, Destroy, Interrupt, List, Restart, Status, Wipe
from cellblock.service.store.tokens import Token

router = APIRouter()

Read = Annotated[Token, Depends(needs("read"))]
ReadAny = Annotated[Token, Depends(needs_of_any("read"))]
Run = Annotated[Token, Depends(needs("run"))]
RunAny = Annotated[Token, Depends(needs_of_any("run"))]
Admin = Annotated[Token, Depends(needs("admin"))]


@router.post("/kernels", status_code=201, response_model=KernelModel, tags=["Kernels"], summary="Make a session")
async def create_kernel(request: Request, wanted: KernelCreateRequest, caller: RunAny) -> Response:
    """Make a session. It is an error if there is one of that name."""
    if wanted.name and wanted.session_name and wanted.name != wanted.session_name:
        raise InvalidInputError("name and session_name must be equal: give one of them")
    name = wanted.name or wanted.session_name or f"session-{secrets.token_hex(4)}"
    return json_response(await create(request, caller, name, wanted.options, wanted.tags, fresh=True), 201)


@router.get("/kernels", response_model=KernelListResponse, tags=["Kernels"], summary="List the sessions")
async def list_kernels(
    request: Request,
    caller: ReadAny,
    refresh: Annotated[bool, Query(description="Whether to look first whether their kernels are alive.")] = False,
) -> Response:
    """List the sessions that the token is for, oldest first."""
    records = await link_of(request).call(List(refresh))
    shown = [record for record in records if not caller.session or caller.session in (record["name"], record["kernel_id"])]
    return json_response({"kernels": [with_age(record) for record in shown]})


@router.delete("/kernels", response_model=KernelWipeResponse, tags=["Kernels"], summary="End all sessions")
async def wipe(request: Request, _: Admin) -> Response:
    """End all sessions, whoever has made them."""
    return json_response({"destroyed": await link_of(request).call(Wipe())})


@router.get("/kernels/{session}", response_model=KernelStatusResponse, tags=["Kernels"], summary="Get the status of a session")
async def get_kernel(request: Request, session: str, _: Read) -> Response:
    """Return the status of a session."""
    record = await link_of(request).call(Status(session))
    return json_response({"alive": record["status"] in ("running", "idle"), "kernel": with_age(record)})


@router.post("/kernels/{session}/restart", response_model=KernelModel, tags=["Kernels"], summary="Give it a fresh kernel")
async def restart(request: Request, session: str, _: Run) -> Response:
    """Give a session a fresh kernel, without variables."""
    return json_response(with_age(await link_of(request).call(Restart(session))))


@router.post("/kernels/{session}/interrupt", response_model=Done, tags=["Kernels"], summary="Stop what runs")
async def interrupt(request: Request, session: str, _: Run) -> Response:
    """Stop what runs in a session; its variables stay."""
    return json_response({"done": await link_of(request).call(Interrupt(session))})


@router.delete("/kernels/{session}", response_model=KernelDestroyedResponse, tags=["Kernels"], summary="End a session")
async def destroy(request: Request, session: str, _: Run) -> Response:
    """End a session, with its variables."""
    link = link_of(request)
    await link.call(Status(session))  # an unknown one is an error, as in KernelBox
    return json_response({"destroyed": await link.call(Destroy(session))})


@router.post("/sessions/{session}", response_model=KernelModel, tags=["Sessions"], summary="Get or make a session")
async def get_or_create(
    request: Request, session: str, caller: Run, wanted: Annotated[SessionCreateRequest | None, Body()] = None
) -> Response:
    """Return the session of this name, which is made if there is none."""
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
    """Make a session, or return the one of that name.

    Args:
        request: The request.
        caller: Whose it is.
        name: The session's name.
        options: Its options, which only some callers may choose.
        tags: Its labels.
        fresh: Whether it is an error if there is one of that name.
        kernel_type: Its kernelspec; empty for what the options or the settings say.

    Raises:
        AccessError: The caller may not have this session, or may not choose its options.
        CellblockError: What the daemon has met.
    """
    if caller.session and name != caller.session:
        raise AccessError("this token is for another session")
    if options:
        check_scope(caller, "admin", ", which the options of a session need")  # they can switch the sandbox off
    setup: GatewayOptions = request.app.state.options
    here = {**await _workspace(setup, name), "python": sys.executable}
    chosen = {"kernel_type": kernel_type} if kernel_type else {}
    given = settings_of(request).session_options({**here, **setup.session_options, **(options or {}), **chosen})
    return with_age(await link_of(request).call(Create(name, given, dict(tags or {}), fresh)))


async def _workspace(setup: GatewayOptions, name: str) -> dict[str, str]:
    """Return the options that say where a session works. The directory is made if each session has one of its own."""
    if setup.workspaces is None:
        return {} if setup.embedded else {"current_dir": os.getcwd()}
    path = workspace_in(setup.workspaces, name)
    try:
        await asyncio.to_thread(path.mkdir, mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"session {name[:100]!r} needs a directory, which cannot be made: {error.strerror}") from error
    return {"working_dir": str(path)}


def workspace_in(directory: Path, name: str) -> Path:
    """Return the directory of a session of its own, directly in another one.

    Its name begins with ``session-``: as ``.git`` or ``node_modules`` it would mean something to programs that run in the
    directory of another session.

    Raises:
        InvalidInputError: The name cannot be the name of a directory.
    """
    if not name.strip(".") or "/" in name or "\0" in name:
        raise InvalidInputError(f"session {name[:100]!r} cannot be the name of a directory: choose another one")
    return directory.absolute() / f"session-{name}"


def with_age(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its age, as KernelBox has it."""
    return {**record, "age_seconds": SessionRecord.from_dict(record).age_seconds}
