"""Serves one client of the proxy: the I/O around `socks` and `http`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import h11

from cellblock.common.turns import turns
from cellblock.walls.egress import http, socks
from cellblock.walls.egress.ends import PlainEnd
from cellblock.walls.egress.exchange import HEAD_READ, Exchange
from cellblock.walls.egress.gate import DeniedError, EgressLimits, Gate, UnreachableError
from cellblock.walls.egress.judge import Handover, JudgedRequest, RequestJudge
from cellblock.walls.egress.lines import WEBSOCKET
from cellblock.walls.egress.names import BadTargetError, Target
from cellblock.walls.egress.rules import RefusedError
from cellblock.walls.egress.serving import FAILURES, answer_failure, hang_up, read_body, read_head
from cellblock.walls.egress.tunnel import Tunnel

if TYPE_CHECKING:
    from cellblock.walls.keys.session_keys import SessionKeys

_TURN_AWAY_SECONDS = 1.0
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_PLAIN = "http:// carries no secrets, because it is not encrypted: use https://"
_SOCKS_CODES = {
    "lookup": socks.HOST_UNREACHABLE,
    "refused": socks.CONNECTION_REFUSED,
    "timeout": socks.EXPIRED,
    "network": socks.NETWORK_UNREACHABLE,
}


class Connection:
    """A client connection of the proxy.

    Args:
        client: Its socket, non-blocking; `serve` closes it.
        gate: Opens connections.
        limits: Limits on sizes and times.
        scratch: A shared buffer for tunnels.
        turned_away: Whether there are too many clients, so that every request is answered with 503.
        keys: Serves the connections to hosts that receive secrets, or whose requests are decided about.
        judge: Decides about requests; given with `keys`.
    """

    def __init__(
        self,
        client: socket.socket,
        gate: Gate,
        limits: EgressLimits,
        scratch: memoryview,
        *,
        turned_away: bool,
        keys: SessionKeys | None = None,
        judge: RequestJudge | None = None,
    ) -> None:
        self._client = client
        self._end = PlainEnd(client)
        self._keys = keys
        self._judge = judge
        self._gate = gate
        self._limits = limits
        self._scratch = scratch
        self._turned_away = turned_away
        self._head_seconds = min(limits.header_seconds, _TURN_AWAY_SECONDS) if turned_away else limits.header_seconds
        self._idle_seconds = limits.idle_seconds
        self._method = "GET"

    async def serve(self) -> None:
        """Serve the client until either side ends the connection. Its errors affect no other client."""
        try:
            async with asyncio.timeout(self._head_seconds):
                first = await self._receive(self._client, HEAD_READ)
            if first[:1] == bytes([socks.VERSION]):
                await self._socks(first)
            elif first:
                await self._http(first)
        except OSError:  # TimeoutError is one
            pass
        finally:
            self._gate.leave(self._client)
            self._client.close()

    # --- SOCKS5

    async def _socks(self, data: bytes) -> None:
        handshake = socks.SocksHandshake()
        try:
            async with asyncio.timeout(self._head_seconds):
                while True:
                    await turns().give_way()
                    if answer := handshake.receive(data):
                        await self._send(self._client, answer)
                    if handshake.target is not None:
                        break
                    if not (data := await self._receive(self._client, HEAD_READ)):
                        return
            if self._turned_away:
                raise socks.SocksError("too many connections", socks.reply(socks.GENERAL_FAILURE))
            upstream = await self._gate.open(handshake.target, socks.METHOD, self._client)
        except BadTargetError as error:
            self._gate.refuse(error.named, str(error), socks.METHOD)
            await hang_up(self._end, socks.reply(socks.NOT_ALLOWED))
        except socks.SocksError as error:
            await hang_up(self._end, error.answer)
        except DeniedError:
            await hang_up(self._end, socks.reply(socks.NOT_ALLOWED))
        except UnreachableError as error:
            await hang_up(self._end, socks.reply(_SOCKS_CODES[error.cause]))
        else:
            await self._connected(handshake.target, upstream, socks.reply(socks.SUCCEEDED), handshake.trailing())

    # --- HTTP

    async def _http(self, data: bytes) -> None:
        """Serve one request after another, each with its own decision."""
        reader = self._reader()
        reader.receive_data(data)
        head = None
        try:
            while (head := await read_head(reader, self._end, self._idle_seconds, self._head_seconds)) is not None:
                self._method = head.method.decode("ascii")
                request = self._understood(head)
                self._check_plain(head, request)
                request, body = await self._judged(head, request, reader)
                upstream = await self._gate.open(request.target, request.method, self._client)
                if request.forwarded is None:
                    await self._connected(request.target, upstream, _ESTABLISHED, reader.trailing_data[0])
                    return
                whole = await Exchange(self._end, PlainEnd(upstream), reader, self._limits, body=body).run(request.forwarded)
                self._gate.leave(self._client)
                if not whole:
                    await hang_up(self._end)
                    return
                reader.start_next_cycle()
        except FAILURES as error:
            async with asyncio.timeout(self._idle_seconds):
                await answer_failure(self._end, error, head)

    def _reader(self) -> h11.Connection:
        return h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.header_bytes)

    def _understood(self, head: h11.Request) -> http.ProxyRequest:
        if self._turned_away:
            text = f"this session has reached its limit of {self._limits.connections} connections; close some"
            raise RefusedError(503, text, reason="Too Many Connections", final=False)
        try:
            return http.read_request(head)
        except BadTargetError as error:
            raise self._gate.refuse(error.named, str(error), self._method) from error

    def _check_plain(self, head: h11.Request, request: http.ProxyRequest) -> None:
        if self._keys is None or request.forwarded is None:
            return
        if self._keys.has_placeholder([head.target, *(value for _, value in head.headers)]):
            raise RefusedError(403, _PLAIN)

    async def _judged(
        self, head: h11.Request, request: http.ProxyRequest, reader: h11.Connection
    ) -> tuple[http.ProxyRequest, bytes | None]:
        """Decide about a plain request. Return it, and its body if a person has decided about it."""
        if self._judge is None or request.forwarded is None or not self._judge.names(request.target):
            return request, None
        if request.method == WEBSOCKET or any(name == b"upgrade" for name, _ in head.headers):
            raise RefusedError(403, "no change of protocol is possible over http://")
        content: bytes | None = None

        async def body() -> bytes:
            nonlocal content
            content = await read_body(reader, self._end, self._idle_seconds)
            return content

        judged = JudgedRequest(request.target, request.method, request.forwarded.target.decode("ascii"), plain=True)
        await self._judge.decide(judged, self._client, body)
        headers = http.without_overrides([*request.forwarded.headers.raw_items()])
        if content is not None:
            headers = [(name, value) for name, value in headers if name.lower() != b"expect"]
        sent = h11.Request(method=head.method, target=request.forwarded.target, headers=headers)
        return replace(request, forwarded=sent), content

    # --- Bytes

    async def _connected(self, target: Target, upstream: socket.socket, answer: bytes, early: bytes) -> None:
        # Before the first await: a change of the lines either sees the note, or has happened before.
        judged = self._judge is not None and self._judge.names(target)
        if not judged:
            self._gate.note_unjudged(self._client)
        if self._keys is None or self._judge is None or not (judged or self._keys.opens(target)):
            await self._tunnel(upstream, answer, early)
            return

        async def redial() -> socket.socket:
            return await self._gate.open(target, self._method, self._client)

        with contextlib.closing(upstream):
            await self._send(self._client, answer)
            await self._keys.serve(Handover(target, self._client, upstream, early, self._judge, judged, redial))

    async def _tunnel(self, upstream: socket.socket, answer: bytes, early: bytes) -> None:
        with contextlib.closing(upstream):
            await self._send(self._client, answer)
            if early:
                await self._send(upstream, early)
            await Tunnel(self._client, upstream, self._scratch, self._idle_seconds).run()

    async def _receive(self, end: socket.socket, size: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(end, size)

    async def _send(self, end: socket.socket, data: bytes) -> None:
        async with asyncio.timeout(self._idle_seconds):
            await asyncio.get_running_loop().sock_sendall(end, data)
