"""Handlers of operations that save a session to a file, and load one."""

from __future__ import annotations

import os
from typing import Any

from cellblock.common.urls import check, is_url
from cellblock.errors import InvalidInputError, UnsupportedError
from cellblock.model.saving import LoadReport, SaveReport
from cellblock.model.sessions import OWN_KERNEL
from cellblock.model.variables import Variable
from cellblock.operations.data import Data, as_data
from cellblock.operations.saving import ChangedVariables, Export, Load, Save, Variables
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers, seconds


@answers(Save)
async def save(server: Server, request: Save) -> Data[SaveReport]:
    _check_python(server, request.session)
    _check_place(request.path)
    session = await server.sessions.live(request.session)
    return as_data(await session.save(request.path, workspace=request.workspace, timeout=seconds(request.timeout)))


@answers(Load)
async def load(server: Server, request: Load) -> Data[LoadReport]:
    _check_python(server, request.session)
    _check_place(request.path)
    session = await server.sessions.live(request.session)
    named = server.sessions.find(request.session)
    async with named.going_back():
        report = await session.load(request.path, workspace=request.workspace, timeout=seconds(request.timeout))
        named.note_loaded()
    return as_data(report)


@answers(Export)
async def export(server: Server, request: Export) -> bool:
    server.sessions.find(request.session)  # report a missing session before a wrong path
    _check_path(request.path)
    await (await server.sessions.live(request.session)).export(request.path)
    return True


@answers(Variables)
async def variables(server: Server, request: Variables) -> list[Data[Variable]]:
    _check_python(server, request.session)
    session = await server.sessions.live(request.session)
    return [as_data(variable) for variable in await session.variables()]


@answers(ChangedVariables)
async def changed_variables(server: Server, request: ChangedVariables) -> dict[str, Any]:
    _check_python(server, request.session)
    changed, deleted = await (await server.sessions.live(request.session)).changes()
    return {"changed": changed, "deleted": deleted}


def _check_python(server: Server, session: str) -> None:
    kernel_type = server.sessions.find(session).record.kernel_type
    if kernel_type != OWN_KERNEL:
        raise UnsupportedError(
            f"cellblock knows the variables of Python sessions only, and the kernel type of this one is {kernel_type!r}"
        )


def _check_place(path: str) -> None:
    if is_url(path):
        check(path)
    else:
        _check_path(path)


def _check_path(path: str) -> None:
    if not os.path.isabs(path):
        raise InvalidInputError(f"the path of a file must be absolute, not {path!r}")
