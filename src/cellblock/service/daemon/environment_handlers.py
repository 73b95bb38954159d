"""Handlers of operations on environments with names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.common.environments import PackageSet
from cellblock.host.files.steps import in_thread
from cellblock.model.environments import EnvironmentRecord
from cellblock.operations.data import Data, as_data
from cellblock.operations.environments import CreateEnvironment, ListEnvironments, RemoveEnvironment, ShowEnvironment
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers

if TYPE_CHECKING:
    from cellblock.host.environments.named_environments import NamedEnvironment, Names


@answers(ListEnvironments)
async def environments(_server: Server, _: ListEnvironments) -> list[Data[EnvironmentRecord]]:
    found = await in_thread(_names().all)
    return [as_data(EnvironmentRecord(**one.to_dict())) for one in found]


@answers(ShowEnvironment)
async def show(_server: Server, request: ShowEnvironment) -> Data[EnvironmentRecord]:
    names = _names()
    return as_data(await in_thread(_described, lambda: names.get(request.name), names))


@answers(CreateEnvironment)
async def create(server: Server, request: CreateEnvironment) -> Data[EnvironmentRecord]:
    asked = PackageSet.from_dict({"base": "empty", **request.environment}) if request.environment else None
    made = await server.sessions.create_environment(request.name, asked, upgrade=request.upgrade)
    return as_data(await in_thread(_described, lambda: made, _names()))


@answers(RemoveEnvironment)
async def remove(_server: Server, request: RemoveEnvironment) -> str:
    return await in_thread(lambda: Path(_names().remove(request.name)).read_text("utf-8"))


def _names() -> Names:
    from cellblock.host.environments.named_environments import Names
    from cellblock.host.environments.store import Store

    return Names(Store())


def _described(find: Callable[[], NamedEnvironment], names: Names) -> EnvironmentRecord:
    found = find()
    previous = Path(found.previous).read_text("utf-8") if found.previous else ""
    return EnvironmentRecord(**found.to_dict(), lock=names.lock_text(found), previous=previous)
