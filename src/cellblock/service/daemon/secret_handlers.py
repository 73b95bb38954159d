"""Handlers of operations on the secrets of a session."""

from __future__ import annotations

from cellblock.host.checks import list_secrets
from cellblock.model.overview import RequestRecord, SecretRecord
from cellblock.operations.data import Data, as_data
from cellblock.operations.secrets import ListSecrets, RefreshSecret, RemoveSecret, Requests
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers


@answers(Requests)
async def requests(server: Server, request: Requests) -> list[Data[RequestRecord]]:
    await server.turns.give_way()
    session = server.sessions.find(request.session).current
    return [] if session is None else [as_data(one) for one in session.requests[-request.count :]]


@answers(ListSecrets)
async def secrets(server: Server, request: ListSecrets) -> list[Data[SecretRecord]]:
    named = server.sessions.find(request.session)
    found = list_secrets(named.options.get("secrets", ())) if named.current is None else named.current.secrets()
    return [as_data(one) for one in found]


@answers(RefreshSecret)
async def refresh(server: Server, request: RefreshSecret) -> bool:
    await (await server.sessions.live(request.session)).refresh_secret(request.name)
    return True


@answers(RemoveSecret)
async def remove(server: Server, request: RemoveSecret) -> bool:
    await (await server.sessions.live(request.session)).remove_secret(request.name)
    server.sessions.forget_removed_secrets()
    return True
