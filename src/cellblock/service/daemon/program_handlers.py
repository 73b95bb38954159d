"""Handlers of operations on programs that run in addition to a session's kernel, and on connections to servers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from cellblock.errors import BusyError, InvalidInputError
from cellblock.model.programs import ExecResult, ProcessInfo, ProcessOutput
from cellblock.operations.data import Data, as_data
from cellblock.operations.programs import (
    MOST_OUTPUT,
    ConnectPort,
    Exec,
    Ports,
    Processes,
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    Spawn,
    StopProcess,
    WritePort,
    WriteProcess,
)
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers, seconds
from cellblock.wire.packed import Packed, pack

if TYPE_CHECKING:
    from cellblock.host.programs.process import Process

MAX_CONNECTIONS = 256
"""Connections to the ports of one session at a time."""
_PIECE = 64 * 1024
_LONGEST = 30_000  # milliseconds that a client may wait in one request


@answers(Exec, with_body=True)
async def exec_(server: Server, request: Exec, body: bytes) -> Data[ExecResult] | Packed:
    if request.max_output > MOST_OUTPUT:
        raise InvalidInputError(f"max_output must be at most {MOST_OUTPUT:,} bytes for sessions with names")
    session = await server.sessions.live(request.session)
    result = await session.exec(
        request.command,
        cwd=request.cwd or None,
        env=request.env,
        input=body or None,
        timeout=seconds(request.timeout),
        merge=request.merge,
        log=request.log or None,
        max_output=request.max_output,
        stop=request.stop,  # type: ignore[arg-type]  # it checks it
    )
    return await asyncio.to_thread(lambda: pack(result.to_dict()))  # possibly many megabytes


@answers(Spawn)
async def spawn(server: Server, request: Spawn) -> Data[ProcessInfo]:
    session = await server.sessions.live(request.session)
    process = await session.spawn(
        request.command,
        cwd=request.cwd or None,
        env=request.env,
        stdin=request.stdin,
        pty=(request.rows, request.columns) if request.rows or request.columns else None,
        merge=request.merge,
        log=request.log or None,
        keep=request.keep,  # type: ignore[arg-type]  # it checks it
        label=request.label,
    )
    return as_data(process.info)


@answers(Processes)
async def listed(server: Server, request: Processes) -> list[Data[ProcessInfo]]:
    return [as_data(info) for info in (await server.sessions.live(request.session)).processes()]


@answers(ReadProcess)
async def read(server: Server, request: ReadProcess) -> Data[ProcessOutput]:
    process = await _process(server, request)
    if not 0 <= request.wait <= _LONGEST or request.since < 0:
        raise InvalidInputError(f"wait must be from 0 to {_LONGEST:,} milliseconds, and since a number of bytes")
    return as_data(await process.output(request.since, request.wait / 1000))


@answers(WriteProcess, with_body=True)
async def write(server: Server, request: WriteProcess, body: bytes) -> bool:
    process = await _process(server, request)
    try:
        await process.write(body)
    except BrokenPipeError:
        return False
    if request.end:
        process.close_stdin()
    return True


@answers(SignalProcess)
async def signal(server: Server, request: SignalProcess) -> bool:
    (await _process(server, request)).signal(request.number, request.scope)  # type: ignore[arg-type]  # it checks it
    return True


@answers(ResizeProcess)
async def resize(server: Server, request: ResizeProcess) -> bool:
    (await _process(server, request)).resize(request.rows, request.columns)
    return True


@answers(StopProcess)
async def stop(server: Server, request: StopProcess) -> Data[ExecResult]:
    process = await _process(server, request)
    return as_data(await process.stop(max(request.grace, 0) / 1000, scope=request.scope))  # type: ignore[arg-type]  # likewise


async def _process(
    server: Server, request: ReadProcess | WriteProcess | SignalProcess | ResizeProcess | StopProcess
) -> Process:
    return (await server.sessions.live(request.session)).process(request.process)


@answers(Ports)
async def ports(server: Server, request: Ports) -> list[int]:
    return await (await server.sessions.live(request.session)).ports()


@answers(ConnectPort)
async def connect(server: Server, request: ConnectPort) -> AsyncGenerator[bytes, None]:
    return _received(server, request.session, request.port)


async def _received(server: Server, session: str, port: int) -> AsyncGenerator[bytes, None]:
    """Yield the id of a new connection, and then what arrives. The connection ends with the generator."""
    if sum(of == session for of, _ in server.connections) >= MAX_CONNECTIONS:
        raise BusyError(f"{MAX_CONNECTIONS} connections to session {session!r} are open already: close some", 1.0)
    key = (session, secrets.token_hex(8))
    server.connections[key] = None
    try:
        made = await (await server.sessions.live(session)).connect(port)
        reader, writer = await asyncio.open_connection(sock=made, limit=_PIECE)
        server.connections[key] = writer
        try:
            yield key[1].encode()
            while data := await reader.read(_PIECE):
                _touch(server, session)
                yield data
        except ConnectionError:
            return  # the server was killed
        finally:
            writer.transport.abort()
    finally:
        del server.connections[key]


@answers(WritePort, with_body=True)
async def write_port(server: Server, request: WritePort, body: bytes) -> bool:
    writer = server.connections.get((request.session, request.connection))
    if writer is None or writer.is_closing():
        return False
    _touch(server, request.session)
    try:
        writer.write(body)
        await writer.drain()
        if request.end:
            writer.write_eof()
    except (ConnectionError, RuntimeError):  # it was closed meanwhile
        return False
    return True


def _touch(server: Server, session: str) -> None:
    """Record that a session is used: a page can stay open for hours without a new connection."""
    if (named := server.sessions.known(session)) is not None:
        named.touch()
