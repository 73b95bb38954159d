"""Forwards one HTTP request to a server, and its response."""

from __future__ import annotations

import asyncio
from typing import Literal

import h11

from cellblock.common.http_headers import Headers
from cellblock.common.turns import turns
from cellblock.walls.egress.ends import End
from cellblock.walls.egress.gate import EgressLimits, UnreachableError
from cellblock.walls.egress.http import (
    CHUNKED_READ,
    TO_WEBSOCKET,
    check_between_chunks,
    check_head,
    response_headers,
)
from cellblock.walls.egress.rules import RefusedError
from cellblock.walls.egress.scan import Scan
from cellblock.walls.egress.tunnel import BUFFER

HEAD_READ = CHUNKED_READ  # a chunked body may follow a head
_MAX_INTERIM = 50
_BODILESS = (204, 304)
_SLACK = 0.1
"""The part of the permitted silence by which it may be exceeded."""


class Exchange:
    """A request and its response, forwarded in both directions at once: a server may answer before the request is complete.

    h11 parses and rewrites every message, so that neither side can make the other see other messages than the proxy.

    Args:
        client: The client; closed here only if a response breaks off.
        upstream: The server, which is closed here.
        reader: The h11 connection that parsed the client's request, and will write the response.
        limits: Limits on sizes and times.
        writer: The h11 connection of a server that stays open after a complete exchange.
        changes: Changes the response, whose body must not be coded.
        body: The whole body of the request, if it was read before.

    Attributes:
        status: The status of the response; 0 before it.
        received: The number of bytes of its body.
        switched: Whether both sides have changed to another protocol, which the request asked for.
    """

    def __init__(
        self,
        client: End,
        upstream: End,
        reader: h11.Connection,
        limits: EgressLimits,
        *,
        writer: h11.Connection | None = None,
        changes: Scan | None = None,
        body: bytes | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._upstream = upstream
        self._reader = reader
        self._stays = writer is not None
        self._writer = writer or h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.header_bytes)
        self._changes = changes
        self._body = body
        self.switched = False
        self.status = self.received = 0
        self._idle_seconds = limits.idle_seconds
        self._silence = asyncio.timeout(None)
        self._begun = False
        self._interim = 0
        self._turns = turns()
        self._chunked_up = self._chunked_down = False

    async def run(self, request: h11.Request) -> bool:
        """Forward the request and the response.

        Args:
            request: The head to send to the server.

        Returns:
            Whether the client may send another request on its connection.

        Raises:
            h11.RemoteProtocolError: The client violated the protocol, and has no response yet.
            UnreachableError: The server violated the protocol or is unreachable, and the client has no response yet.
            RefusedError: The response is to be changed, and is coded. The client has no response yet.
            OSError: The client has left, or was cut off in the middle of a response.
        """
        whole = False
        try:
            async with asyncio.timeout(self._idle_seconds * (1 + _SLACK)) as self._silence:
                await self._both_ways(request)
            whole = True
        except TimeoutError as error:
            raise self._failed(f"the server was silent for {self._idle_seconds:g} s", "timeout") from error
        except h11.RemoteProtocolError as error:
            if self._begun:
                raise ConnectionAbortedError("the client broke the protocol") from error
            raise
        except h11.LocalProtocolError as error:  # h11 accepted it, but does not write it
            raise self._failed(f"the message cannot be forwarded: {error}", "network") from error
        finally:
            # A truncated message must not look complete, neither to the server nor to the client.
            if not whole:
                self._upstream.reset()
                if self._begun:
                    self._client.reset()
            elif not self._stays:
                self._upstream.close()
        ends = [self._reader, *([self._writer] if self._stays else [])]
        return all(end.our_state is h11.DONE and end.their_state is h11.DONE for end in ends)

    async def _both_ways(self, request: h11.Request) -> None:
        pieces = [self._sent(self._writer, request)]
        self._chunked_up = _is_chunked(request)
        if self._body is not None:
            pieces += [self._sent(self._writer, event) for event in (h11.Data(self._body), h11.EndOfMessage())]
        elif await self._heard_all(pieces):  # as for most requests: no task is needed for a body
            await self._pass_up(pieces)
            await self._download()
            return
        try:
            async with asyncio.TaskGroup() as group:
                upload = group.create_task(self._upload(pieces))
                await self._download()
                upload.cancel()
        except BaseExceptionGroup as errors:  # a group may hold a cancellation
            # Before Python 3.13, a group with a failure forgets that it was cancelled, too.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from errors
            raise errors.exceptions[0] from None

    async def _upload(self, pieces: list[bytes]) -> None:
        done = self._body is not None
        while await self._pass_up(pieces) and not done:
            self._reader.receive_data(await self._receive(self._client, CHUNKED_READ if self._chunked_up else BUFFER))
            done = await self._heard_all(pieces)

    async def _heard_all(self, pieces: list[bytes]) -> bool:
        """Collect the received part of the client's body. Return whether it is complete."""
        while True:
            await self._turns.give_way()
            if (event := self._reader.next_event()) is h11.NEED_DATA:
                break
            if isinstance(event, h11.EndOfMessage):
                pieces.append(self._sent(self._writer, h11.EndOfMessage()))
                return True
            assert isinstance(event, h11.Data)
            pieces.append(self._sent(self._writer, h11.Data(event.data)))
        if self._chunked_up:
            check_between_chunks(self._reader)
        return False

    async def _pass_up(self, pieces: list[bytes]) -> bool:
        try:
            await self._send(self._upstream, pieces)
        except OSError:
            # The server no longer reads, but may have answered already: the other direction finds out.
            return False
        return True

    async def _download(self) -> None:
        pieces: list[bytes] = []
        while True:
            # A server that stays open has sent nothing since the last response.
            data = await self._next(pieces)
            try:
                self._writer.receive_data(data)
                while (event := await self._event()) is not h11.NEED_DATA:
                    pieces.append(self._translated(event))
                    if isinstance(event, h11.EndOfMessage) or self.switched:
                        await self._send(self._client, pieces)
                        return
                if self._chunked_down:
                    check_between_chunks(self._writer)
            except h11.RemoteProtocolError as error:
                raise self._failed(f"the server's response cannot be used: {error}", "network") from error

    async def _event(self) -> object:
        await self._turns.give_way()
        if not self._begun:
            check_head(self._writer)
        return self._writer.next_event()

    async def _next(self, pieces: list[bytes]) -> bytes:
        """Send the client pending bytes, then return the server's next event."""
        await self._send(self._client, pieces)
        try:
            size = HEAD_READ if not self._begun else CHUNKED_READ if self._chunked_down else BUFFER
            return await self._receive(self._upstream, size)
        except OSError as error:
            raise self._failed(f"the connection to the server was lost: {error}", "network") from error

    def _translated(self, event: object) -> bytes:
        """Translate a server's event for the client."""
        match event:
            case h11.Data():
                self.received += len(event.data)
                data = event.data if self._changes is None else self._changes.feed(bytes(event.data))
                return self._sent(self._reader, h11.Data(data))
            case h11.InformationalResponse() if self._too_many_interim():
                raise self._failed(f"the server sent more than {_MAX_INTERIM} interim responses", "network")
            case h11.InformationalResponse() if self._reader.their_http_version == b"1.0":
                return b""
            case h11.InformationalResponse() | h11.Response():
                self.switched = event.status_code == 101
                self._begun = self.switched or isinstance(event, h11.Response)
                self._chunked_down = self._begun and _is_chunked(event)
                return self._sent(self._reader, self._head(event))
            case _:
                rest = b"" if self._changes is None else self._changes.end()
                last = self._sent(self._reader, h11.Data(rest)) if rest else b""
                return last + self._sent(self._reader, h11.EndOfMessage())

    def _head(self, event: h11.InformationalResponse | h11.Response) -> h11.InformationalResponse | h11.Response:
        """Return the head of a response for the client."""
        headers, reason = response_headers(event), event.reason
        self.status = event.status_code
        if self.switched:  # to the protocol that the request names, which h11 has checked
            headers += TO_WEBSOCKET
        if (changes := self._changes) is not None:
            if _is_coded(headers):
                self._begun = False
                # Not 502, after which SDKs would repeat a request that the server has carried out.
                text = "the response is compressed, so that secrets in it could not be found"
                raise RefusedError(403, f"{text}; the server may have carried out the request")
            headers, reason = _changed(headers, changes), changes.whole(reason)
            if self.status not in (101, *_BODILESS):  # its length may change
                headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        return type(event)(status_code=self.status, headers=headers, reason=reason)

    def _too_many_interim(self) -> bool:
        self._interim += 1
        return self._interim > _MAX_INTERIM

    def _failed(self, text: str, cause: Literal["timeout", "network"]) -> Exception:
        return ConnectionAbortedError(text) if self._begun else UnreachableError(text, cause)

    @staticmethod
    def _sent(connection: h11.Connection, event: h11.Event) -> bytes:
        return connection.send(event) or b""

    async def _send(self, end: End, pieces: list[bytes]) -> None:
        if data := b"".join(pieces):
            await end.send(data)
            self._moved()
        pieces.clear()

    async def _receive(self, end: End, size: int) -> bytes:
        data = await end.receive(size)
        self._moved()
        return data

    def _moved(self) -> None:
        until, due = self._loop.time() + self._idle_seconds, self._silence.when()
        # A new timer for each piece takes a tenth of the time of a short exchange.
        if due is not None and due < until and not self._silence.expired():
            self._silence.reschedule(until + self._idle_seconds * _SLACK)


def _is_chunked(head: h11.Request | h11.Response | h11.InformationalResponse) -> bool:
    return any(name == b"transfer-encoding" for name, _ in head.headers)


def _is_coded(headers: Headers) -> bool:
    return any(name.lower() == b"content-encoding" and value.lower() != b"identity" for name, value in headers)


def _changed(headers: Headers, changes: Scan) -> Headers:
    return [(changes.whole(name), changes.whole(value)) for name, value in headers]
