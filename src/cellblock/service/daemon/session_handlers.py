"""Handlers of operations on the daemon and its sessions, and of editor requests."""

from __future__ import annotations

import os
from typing import Any, cast

from cellblock.common.version import __version__
from cellblock.model import Completions, HistoryEntry
from cellblock.model.sessions import SessionRecord
from cellblock.operations.base import PROTOCOL
from cellblock.operations.data import Data, as_data
from cellblock.operations.sessions import (
    About,
    Census,
    Complete,
    Create,
    Destroy,
    End,
    Hello,
    History,
    Inspect,
    Interrupt,
    List,
    Restart,
    Status,
    Wipe,
)
from cellblock.service.daemon import lease
from cellblock.service.daemon.daemon_state import Server, other_version
from cellblock.service.daemon.handlers import answers
from cellblock.wire.packed import Packed, encode_item, pack_items


@answers(Hello)
async def hello(server: Server, request: Hello) -> dict[str, Any]:
    if request.protocol != PROTOCOL:
        raise other_version(request.version, str(request.protocol))
    return {"protocol": PROTOCOL, "version": __version__, "pid": os.getpid(), "started": server.started}


@answers(About)
async def about(server: Server, _: About) -> dict[str, Any]:
    return server.about()


@answers(Census)
async def census(server: Server, _: Census) -> dict[str, Any]:
    """Handle `Census`. Nothing else happens between its two looks."""
    made, server.made = server.made, set()
    names = sorted({*server.sessions.names, *server.promised})
    warm = sorted(server.sessions.warm)
    about = {"origins": sorted(server.origins), "warm": warm, **server.about()}
    return {"time": lease.now(), "names": names, "made": sorted(made)} | about


@answers(End)
async def end(server: Server, request: End) -> bool:
    await server.sessions.save_durable()
    if not request.keep:
        await server.sessions.wipe(durable=False)
    server.asked_to_end.set()
    return True


@answers(Create)
async def create(server: Server, request: Create) -> Data[SessionRecord]:
    with server.placed(request.grant, [request.name]):
        made = await server.sessions.create(
            request.name, request.options, request.tags, fresh=request.fresh, lasting=not request.bound, chosen=request.chosen
        )
    return as_data(made.shown())


@answers(List)
async def listed(server: Server, request: List) -> list[Data[SessionRecord]] | Packed:
    """Handle `List`. There can be thousands of sessions."""
    items: list[bytes] = []
    for named in server.sessions.all():
        await server.turns.give_way()
        record = await server.sessions.fresh_record(named) if request.refresh else named.shown()
        items.append(encode_item(record.to_dict()))
    return pack_items(items)


@answers(Status)
async def status(server: Server, request: Status) -> Data[SessionRecord]:
    return as_data(server.sessions.find(request.session).shown())


@answers(Restart)
async def restart(server: Server, request: Restart) -> Data[SessionRecord]:
    return as_data(await server.sessions.restart(request.session))


@answers(Destroy)
async def destroy(server: Server, request: Destroy) -> bool:
    return await server.sessions.destroy(request.session)


@answers(Wipe)
async def wipe(server: Server, _: Wipe) -> list[str]:
    return await server.sessions.wipe()


@answers(Interrupt)
async def interrupt(server: Server, request: Interrupt) -> bool:
    return await server.sessions.executions.interrupt(server.sessions.find(request.session), request.key)


@answers(Complete, with_body=True)
async def complete(server: Server, request: Complete, body: bytes) -> Data[Completions]:
    session = await server.sessions.live(request.session)
    return as_data(await session.complete(body.decode("utf-8", "replace"), _place(request.cursor)))


@answers(Inspect, with_body=True)
async def inspect(server: Server, request: Inspect, body: bytes) -> str | None:
    session = await server.sessions.live(request.session)
    return await session.inspect(body.decode("utf-8", "replace"), _place(request.cursor), detail=request.detail)


@answers(History)
async def history(server: Server, request: History) -> list[Data[HistoryEntry]]:
    session = await server.sessions.live(request.session)
    return [
        cast("Data[HistoryEntry]", {name: getattr(entry, name) for name in ("code", "status", "execution_count", "abandoned")})
        for entry in server.sessions.history(request.session, session, request.count)
    ]


def _place(cursor: int) -> int | None:
    return None if cursor < 0 else cursor
