"""Serves one opened connection in a turnkey: TLS to the client, TLS to the server, and HTTP between them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import h11

from cellblock.common.http_headers import Headers
from cellblock.walls.egress.exchange import Exchange
from cellblock.walls.egress.gate import EgressLimits, UnreachableError
from cellblock.walls.egress.http import TO_WEBSOCKET, BadRequestError, check_framing, request_headers, without_overrides
from cellblock.walls.egress.judge import MOST_BODY
from cellblock.walls.egress.lines import WEBSOCKET
from cellblock.walls.egress.names import BadNameError, host_text, parse_authority
from cellblock.walls.egress.paths import LONGEST
from cellblock.walls.egress.rules import RefusedError
from cellblock.walls.egress.scan import Scan
from cellblock.walls.egress.serving import FAILURES, answer_failure, read_body, read_head
from cellblock.walls.keys.fill import MOST_REPLACED, Filled, fill, inserts_at, length_of, quoting, with_length
from cellblock.walls.keys.messages import SHOWN
from cellblock.walls.keys.sigv4 import MOST_SIGNED, needs_body, sign
from cellblock.walls.keys.tls_end import TlsEnd
from cellblock.walls.keys.websockets import asks_for_websocket, relay

Ask: TypeAlias = Callable[[dict[str, Any] | None], Awaitable[tuple[dict[str, Any], socket.socket | None]]]
"""Sends the host a message about a connection, if any, and returns its next answer with a socket that came with it."""

# An empty SETTINGS frame, and GOAWAY (8 bytes: no stream, HTTP_1_1_REQUIRED).
_GOAWAY = bytes.fromhex("000000 04 00 00000000  000008 07 00 00000000  00000000 0000000d")
_PREFACE = (b"PRI", b"*", b"2.0")
_NEVER = (b"TRACE", b"CONNECT", WEBSOCKET.encode())
# They ask for a part of a response, or for a code: the secret could not be found in it.
_HIDING = (b"accept-encoding", b"range", b"if-range")
_HTTPS = 443


@dataclass(frozen=True, slots=True)
class Opening:
    """What all opened connections of a session share.

    Attributes:
        server: The TLS settings for clients.
        client: The TLS settings for servers.
        limits: Limits on sizes and times.
        secrets: Returns the secrets (`bindings.described`).
        log: Takes the record of a request.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    limits: EgressLimits
    secrets: Callable[[], list[dict[str, Any]]]
    log: Callable[[dict[str, Any]], None]


class OpenedConnection:
    """A connection whose requests the turnkey reads.

    Args:
        opening: What all connections share.
        at: The target as ``host:port``.
        client: The socket of the client.
        upstream: The socket of the server.
        early: Bytes that the client sent ahead.
        ask: Asks the host about each request; None if nothing decides about requests.
    """

    def __init__(
        self,
        opening: Opening,
        at: str,
        client: socket.socket,
        upstream: socket.socket,
        early: bytes,
        ask: Ask | None = None,
    ) -> None:
        self._opening = opening
        self._limits = opening.limits
        self._at = at
        self._target = parse_authority(at)
        self._client = TlsEnd(client, opening.server, early=early)
        self._upstream = self._to_server(upstream)
        self._writer = self._new_writer()
        self._ask = ask
        host = host_text(self._target.host)
        self._names = {at, host} if self._target.port == _HTTPS else {at}
        self._method = "GET"

    async def serve(self) -> None:
        """Serve the client until either side ends the connection. Its errors affect no other client."""
        reaching = asyncio.create_task(self._reach())
        whole = False
        try:
            async with asyncio.timeout(self._limits.header_seconds):
                await self._client.handshake()
            await self._requests(reaching)
            whole = True
        except OSError:  # TimeoutError and ssl.SSLError are
            pass
        finally:
            reaching.cancel()
            for end in (self._client, self._upstream):
                end.close() if whole else end.reset()

    def _to_server(self, upstream: socket.socket) -> TlsEnd:
        return TlsEnd(upstream, self._opening.client, hostname=str(self._target.host))

    def _new_writer(self) -> h11.Connection:
        return h11.Connection(h11.CLIENT, max_incomplete_event_size=self._limits.header_bytes)

    async def _reach(self) -> None:
        async with asyncio.timeout(self._limits.connect_seconds):
            await self._upstream.handshake()

    async def _requests(self, reaching: asyncio.Task[None]) -> None:
        reader = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.header_bytes)
        limits, first, head = self._limits, True, None
        try:
            while (head := await read_head(reader, self._client, limits.idle_seconds, limits.header_seconds)) is not None:
                if (head.method, head.target, head.http_version) == _PREFACE:
                    await self._client.send(_GOAWAY)
                    return
                self._method = head.method.decode("ascii")
                if first:
                    await self._wait(reaching)
                elif self._writer.trailing_data != (b"", False) or self._upstream.is_stale():
                    return  # as if the server had closed the connection: clients send the request again
                first = False
                if not await self._forward(head, reader):
                    return
                reader.start_next_cycle()
                self._writer.start_next_cycle()
        except FAILURES as error:
            await answer_failure(self._client, error, head)

    async def _wait(self, reaching: asyncio.Task[None]) -> None:
        """Wait for the TLS handshake with the server. Nothing was sent to it before."""
        try:
            await reaching
        except ssl.SSLCertVerificationError as error:
            text = f"{self._at} has no trusted certificate: {error.verify_message}"
            raise RefusedError(502, text) from None
        except TimeoutError:
            raise UnreachableError(f"{self._at} did not answer the TLS handshake", "timeout") from None
        except OSError as error:
            raise UnreachableError(f"the TLS handshake with {self._at} failed: {error.strerror or error}", "network") from None

    async def _forward(self, head: h11.Request, reader: h11.Connection) -> bool:
        """Forward one request and its response. Return whether both connections can be used again."""
        log = {
            "ms": time.time_ns() // 1_000_000,
            "method": self._method[:SHOWN],
            "host": self._at,
            "path": head.target.decode("ascii").partition("?")[0][:SHOWN],
            "status": 0,
            "bytes": 0,
            "secrets": [],
            "decision": "refused",
        }
        try:
            upgrade = asks_for_websocket(head)
            filled = self._filled(head, upgrade=upgrade)
            given = await self._body_for_secrets(filled, reader)
            if inserts := given is not None:
                filled = self._filled(head, upgrade=upgrade)  # the body took time: secrets may have changed
            body = self._with_body(filled, given, inserts=inserts)
            log["secrets"] = filled.names
            if self._ask is not None:
                given = await self._judged(self._ask, head, filled.names, given, reader, upgrade=upgrade)
                decided = filled.names
                # A decision takes time: secrets may have been refreshed or removed.
                filled = self._filled(head, upgrade=upgrade)
                body = self._with_body(filled, given, inserts=inserts)
                if removed := [name for name in decided if name not in filled.names]:
                    raise RefusedError(403, f"the secret {removed[0]} was removed from this session")
            log |= {"decision": "allowed"}
            changes = Scan(filled.replacements) if filled.replacements else None
            exchange = Exchange(
                self._client, self._upstream, reader, self._limits, writer=self._writer, changes=changes, body=body
            )
            try:
                again = await exchange.run(h11.Request(method=head.method, target=filled.target, headers=filled.headers))
            finally:
                log |= {"status": exchange.status, "bytes": exchange.received}
            if exchange.switched:
                early = (reader.trailing_data[0], self._writer.trailing_data[0])
                await relay(self._client, self._upstream, *early, self._limits.idle_seconds)
            return again
        except RefusedError as error:
            log["status"] = error.status
            raise
        finally:
            self._opening.log(log)

    async def _judged(
        self, ask: Ask, head: h11.Request, names: list[str], given: bytes | None, reader: h11.Connection, *, upgrade: bool
    ) -> bytes | None:
        """Ask the host about a request. Return its body, with placeholders, if it has been read.

        Raises:
            RefusedError: The request is refused.
        """
        method = WEBSOCKET if upgrade else self._method
        # The host refuses longer ones, and a message must have room for it.
        url = head.target[: LONGEST + 1].decode("ascii")
        answer, connection = await ask({"method": method[:SHOWN], "url": url, "secrets": names})
        if connection is not None and "wanted" in answer:  # a person decides about exactly this body
            with connection:
                given = await read_body(reader, self._client, self._limits.idle_seconds) if given is None else given
                await asyncio.get_running_loop().sock_sendall(connection, given[: MOST_BODY + 1])
            answer, connection = await ask(None)
        if answer["refused"] is not None:
            status, text = answer["refused"]
            raise RefusedError(status, text)
        if connection is not None:
            self._upstream.close()
            self._upstream, self._writer = self._to_server(connection), self._new_writer()
            await self._wait(asyncio.create_task(self._reach()))
        return given

    def _with_body(self, filled: Filled, body: bytes | None, *, inserts: bool) -> bytes | None:
        """Complete the head for the server, and return the body, with secrets.

        Raises:
            RefusedError: The request cannot be signed.
        """
        if self._ask is not None:
            filled.headers = without_overrides(filled.headers)
        if body is not None:
            filled.headers = [(name, value) for name, value in filled.headers if name.lower() != b"expect"]
            body = self._fill_body(filled, body) if inserts else body
        if filled.signing is not None:
            filled.headers = sign(filled.signing, self._method, filled.target, filled.headers, body)
        return body

    def _filled(self, head: h11.Request, *, upgrade: bool) -> Filled:
        """Return the head for the server, with the secrets in it.

        Raises:
            RefusedError: The request is ambiguous, for another host, or contains a placeholder at a wrong place.
        """
        check_framing(head)
        if head.method in _NEVER:
            raise RefusedError(403, f"the method {self._method} is not possible for {self._at}")
        _check_target(head)
        given = [*head.headers]  # h11 takes long for each pass over them
        self._check_upgrade(given, upgrade=upgrade)
        self._check_host(given)
        host = host_text(self._target.host) if self._target.port == _HTTPS else self._at
        headers = [(b"Host", host.encode("ascii")), *request_headers(head, given)]
        filled = fill(head.target, headers, self._at, self._opening.secrets())
        if filled.replacements:
            filled.headers = [(name, value) for name, value in filled.headers if name.lower() not in _HIDING]
            filled.headers.append((b"Accept-Encoding", b"identity"))
        if upgrade:
            filled.headers += TO_WEBSOCKET
        return filled

    async def _body_for_secrets(self, filled: Filled, reader: h11.Connection) -> bytes | None:
        """Return the body if a secret may have to be inserted into it, else None.

        Raises:
            RefusedError: A body without a length, or one that must be hashed, is too long.
        """
        length = length_of(filled.headers)
        if filled.signing is not None and needs_body(filled.headers):
            most = MOST_SIGNED
            text = f"a body without x-amz-content-sha256 can have at most {most >> 20} MiB, because it must be hashed"
        elif quoting(filled.headers) is None or length > MOST_REPLACED or not inserts_at(self._at, self._opening.secrets()):
            return None
        else:
            most = MOST_REPLACED
            text = f"this body can have at most {most >> 10} KiB, because a secret may have to be inserted into it"
        if length <= most:
            body = await read_body(reader, self._client, self._limits.idle_seconds, most)
            if len(body) <= most:
                return body
        raise RefusedError(413, text)

    def _fill_body(self, filled: Filled, body: bytes) -> bytes:
        """Return a body with the secrets in it, and adjust the head."""
        quote = quoting(filled.headers)
        for name, placeholder, value in inserts_at(self._at, self._opening.secrets()):
            if quote is not None and placeholder in body:
                body = body.replace(placeholder, quote(value))
                filled.names += [] if name in filled.names else [name]
        filled.headers = with_length(filled.headers, len(body))
        return body

    def _check_upgrade(self, headers: Headers, *, upgrade: bool) -> None:
        if any(name == b"upgrade" for name, _ in headers) and not (upgrade and self._ask is not None):
            text = f"no change of protocol is possible for {self._at}, except by a request line with the method {WEBSOCKET}"
            raise RefusedError(403, text)

    def _check_host(self, headers: Headers) -> None:
        sni: str | None = getattr(self._client.tls, "named", None)
        given = [value.decode("latin-1") for name, value in headers if name == b"host"]
        for text in (*given, *([] if sni is None else [sni])):
            if text in self._names:
                continue
            try:
                named = parse_authority(text, self._target.port)
            except BadNameError:
                named = None
            if named is None or named.host != self._target.host or (text in given and named.port != self._target.port):
                raise RefusedError(421, f"the request is for another host than {self._at}")


def _check_target(head: h11.Request) -> None:
    """Refuse absolute targets: they could name another host."""
    if not head.target.startswith(b"/") and (head.method, head.target) != (b"OPTIONS", b"*"):
        raise BadRequestError("the target must be a path")
