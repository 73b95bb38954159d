"""Handlers of operations that move a session between cluster nodes."""

from __future__ import annotations

import asyncio
import functools
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from cellblock.common import addresses
from cellblock.common.tasks import despite_cancellation
from cellblock.errors import DaemonError, NotFoundError, ProtocolError, StateError, UnsupportedError
from cellblock.model.sessions import Permission, SessionRecord, mark_of
from cellblock.operations.data import Data, as_data
from cellblock.operations.moving import GiveAway, GivenAway, TakeOver
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers
from cellblock.service.daemon.link import DaemonLink
from cellblock.service.daemon.tls import tls
from cellblock.service.named.arrival import Arrival, Source, check_whole
from cellblock.service.named.moving import check_can_move, held
from cellblock.service.named.session import NamedSession

_PIECE = 1024 * 1024
_SAVE = "move-"
_SAVING, _CONNECT, _LOST, _AGAIN = 30.0, 3.0, 60.0, 0.2  # seconds


@answers(GiveAway)
async def give_away(server: Server, request: GiveAway) -> AsyncGenerator[Any, None]:
    return _given(server, server.sessions.find(request.session), request)


async def _given(server: Server, named: NamedSession, request: GiveAway) -> AsyncGenerator[Any, None]:
    check_can_move(named, whole=request.whole)
    session = await server.sessions.live(named.record.kernel_id)
    async with held(named, request.patience / 1000, server.sessions.executions.waits_for) as hold:
        check_can_move(named, whole=request.whole)
        with _place(server) as directory:
            path = Path(directory) / "save"
            report = await session.save(path, workspace=True, timeout=_SAVING)
            if request.whole:
                check_whole(report.left_out)
            options = dict(named.options)
            if server.sessions.own_workspace(named) is not None:
                del options["working_dir"]  # the other node creates one
            store, number = server.sessions.store, named.record.kernel_id
            await store.writer.caught_up()
            yield {
                "record": named.stamp().to_dict(),
                "options": options,
                "permissions": [[permission.to_dict(), [*key]] for permission, key in store.sessions.permissions(number)],
                "network": store.networks.state(number),
                "executions": store.journal.past(number),
                "hold": hold,
                "size": report.size,
            }
            with path.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, _PIECE):
                    yield piece
        await asyncio.get_running_loop().create_future()  # until the other node closes the connection


@answers(GivenAway)
async def given_away(server: Server, request: GivenAway) -> bool:
    if server.sessions.gave_away(request.session, request.hold):
        return True
    named = server.sessions.known(request.session)
    if named is None:
        raise NotFoundError(f"session {request.session!r} has ended")
    if not named.held or named.held != request.hold:
        raise StateError("the session is no longer held, and continues on this node")
    server.refuse_older_placements()
    await server.sessions.give_away(named)
    return True


@answers(TakeOver)
async def take_over(server: Server, request: TakeOver) -> Data[SessionRecord]:
    if server.credentials is None:
        raise UnsupportedError("sessions can move only between nodes of a cluster")
    link = _link(server.credentials, request.address, request.port)
    with server.placed(request.grant, [request.session]), _place(server) as directory:
        try:
            parts = link.follow(GiveAway(request.session, request.patience, request.whole))
            async with aclosing(parts):
                return await _taken(server, request, link, parts, Path(directory) / "save")
        except DaemonError as error:  # from the other node: this one knows that the session is not here
            raise StateError(f"the session's node failed: {error}") from error
        finally:
            await link.close()


def _remove_saves(directory: Path | None) -> None:
    for left in () if directory is None else directory.glob(f"{_SAVE}*"):
        shutil.rmtree(left, ignore_errors=True)


async def settle_arrivals(server: Server, credentials: Path) -> None:
    """Find out which nodes have the sessions that were arriving when the last process was killed. Remove the saves."""
    await asyncio.to_thread(_remove_saves, server.sessions.store.directory)

    async def settle(session: str, source: Source) -> None:
        link = _link(credentials, source.address, source.port)
        try:
            given = await _is_given(link, session, source.hold)
        finally:
            await link.close()
        if given:
            server.origins.add(mark_of(session))
        await server.sessions.settle(session, given=given)

    await asyncio.gather(*(settle(session, source) for session, source in server.sessions.arriving.items()))


async def _is_given(link: DaemonLink, session: str, hold: str) -> bool:
    """Ask a node to give a session away that is held there; return whether it has. Otherwise, it continues there.

    A node that does not answer for a minute is lost with its sessions.
    """
    deadline = asyncio.get_running_loop().time() + _LOST
    while True:
        try:
            await link.call(GivenAway(session, hold))
            return True
        except NotFoundError:
            return True  # it was given away, and the node's daemon was killed since
        except StateError:
            return False
        except DaemonError:
            if asyncio.get_running_loop().time() > deadline:
                return True
        await asyncio.sleep(_AGAIN)


def _link(credentials: Path, address: str, port: int) -> DaemonLink:
    return DaemonLink(connect=functools.partial(_connect, address, port), tls=tls(credentials, server=False))


def _place(server: Server) -> tempfile.TemporaryDirectory[str]:
    """Return a directory for one save. If this daemon is killed, the next one removes the directory."""
    return tempfile.TemporaryDirectory(prefix=_SAVE, dir=server.sessions.store.directory)


async def _taken(
    server: Server, request: TakeOver, link: DaemonLink, parts: AsyncGenerator[Any, None], path: Path
) -> Data[SessionRecord]:
    about = await anext(parts)
    record = SessionRecord.from_dict(about["record"])
    if record.name != request.session:
        raise ProtocolError(f"another session was given away: {record.name[:100]!r}")
    size = about["size"]
    with path.open("wb") as file:
        while file.tell() < size:
            await asyncio.to_thread(file.write, await anext(parts))
    store, number = server.sessions.store, record.kernel_id
    permissions = [(Permission(**permission), tuple(key)) for permission, key in about["permissions"]]
    for permission, key in permissions:
        store.sessions.allow(permission, key)

    store.networks.take(number, about["network"])

    async def confirm() -> None:
        store.journal.enter_past(about["executions"])  # before the session accepts requests: a used key must not run again
        if not await _is_given(link, number, about["hold"]):
            raise StateError("the session is no longer held, and continues on its node")
        server.origins.add(mark_of(number))

    source = Source(request.address, request.port, about["hold"])
    arrival = Arrival(source, path, request.whole)
    arriving = asyncio.create_task(server.sessions.take_over(record, about["options"], arrival, confirm))
    try:
        await despite_cancellation(arriving)  # the session still arrives if the director is killed
        named = arriving.result()
    except BaseException:
        if server.sessions.known(number) is None:
            store.sessions.forget_permissions(number)
            store.networks.leave(number)
        raise
    return as_data(named.shown())


async def _connect(address: str, port: int) -> socket.socket:
    try:
        return await addresses.connect(address, port, _CONNECT)
    except OSError as error:
        why = error.strerror or "it does not answer"
        raise DaemonError(f"the other node cannot be reached at {address}:{port}: {why}") from error
