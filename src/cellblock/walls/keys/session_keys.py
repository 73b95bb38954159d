"""The secrets of one session on the host's side: their values, its turnkey, and the record of requests."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import math
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError
from cellblock.model.untrusted import parse_json
from cellblock.walls.egress.gate import DeniedError, EgressLimits, UnreachableError
from cellblock.walls.egress.judge import MOST_BODY, JudgedRequest, RefusedRequest, RequestJudge
from cellblock.walls.egress.names import Target
from cellblock.walls.keys import trust
from cellblock.walls.keys.bindings import Binding, bind, described, patterns
from cellblock.walls.keys.limits import MESSAGE
from cellblock.walls.keys.sources import completed, entries, read_value
from cellblock.walls.keys.template_process import Template
from cellblock.wire.sandbox import Step

_IDLE_SECONDS = 60.0
_REQUESTS = 1000
_RETRY_SECONDS = 0.01
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def bindings_of(declared: Mapping[str, Mapping[str, Any]]) -> tuple[Binding, ...]:
    """Return the bindings of declared secrets.

    Args:
        declared: From `parse_secrets`.

    Raises:
        InvalidInputError: A secret has no host, or ``secrets.toml`` is invalid.
        UnsupportedError: The extra ``keys`` is not installed.
    """
    require_extra("keys", "secrets")
    known = entries()
    return tuple(bind(name, completed(name, data, known)) for name, data in declared.items())


Redial: TypeAlias = Callable[[], Awaitable[socket.socket]]
"""Connects to the server of a connection again, by the same rules."""


class _BrokenError(Exception):
    """A message that no turnkey sends: a server has taken it over."""


@dataclass(slots=True)
class _Served:
    """An opened connection. What its turnkey says about it is hostile.

    Attributes:
        target: The target.
        client: The socket of the client.
        judge: Decides about its requests.
        redial: Connects to the server again.
        ended: Resolves with its end.
        judging: The decision about its present request.
        body: Resolves with the body of a request that a person decides about.
        pieces: The received part of that body.
        fresh: The last connection from `redial`.
    """

    target: Target
    client: socket.socket
    judge: RequestJudge
    redial: Redial
    ended: asyncio.Future[None]
    judging: asyncio.Task[None] | None = None
    body: asyncio.Future[bytes | None] | None = None
    pieces: bytearray = field(default_factory=bytearray)
    fresh: socket.socket | None = None


class SessionKeys:
    """The secrets of one session and its branches, and the process that opens connections to ruled hosts.

    Args:
        bindings: The secrets.
        ruled: Further hosts whose connections are opened, because requests to them are judged, as ``host:port``.

    Attributes:
        patterns: Patterns that allow their hosts.
        requests: The last requests to hosts with secrets: no query, header or body.
    """

    def __init__(self, bindings: tuple[Binding, ...], ruled: Iterable[str] = ()) -> None:
        self._bindings = bindings
        self._ruled = sorted(set(ruled))
        self._approved: set[str] = set()
        self._judging: set[asyncio.Task[None]] = set()
        self.patterns = patterns(bindings)
        self._seed = secrets.token_bytes(32)
        self._values: dict[str, str] = {}
        self._read_at: dict[str, float] = {}
        self._users = 0
        self._hosts = frozenset(host for binding in bindings for host in binding.hosts)
        self.requests: deque[dict[str, Any]] = deque(maxlen=_REQUESTS)
        self._limits = EgressLimits()
        self._control: socket.socket | None = None
        self._waiting: dict[int, _Served] = {}
        self._number = 0
        self._starting = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    @property
    def names(self) -> set[str]:
        """The names of the secrets."""
        return {binding.name for binding in self._bindings}

    def mounts(self, path: str) -> tuple[Step, ...]:
        """Return the mounts that show a session its certificates (`make_bundle`), read-only."""
        return trust.mounts(path)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the session: placeholders, and where the certificates are."""
        return trust.VARIABLES | {binding.name: binding.placeholder(self._seed) for binding in self._bindings}

    def hold(self) -> int:
        """Return a descriptor of a sealed file in memory with the seed and the values, for the next host of the session."""
        descriptor = os.memfd_create("keys", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        data = json.dumps({"seed": base64.b64encode(self._seed).decode(), "values": self._values}).encode()
        os.write(descriptor, data)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor

    def resume(self, descriptor: int) -> None:
        """Take over the seed and the values of an earlier host from `hold`, and close the descriptor."""
        with open(descriptor, "rb") as file:
            file.seek(0)
            held = json.loads(file.read())
        self._seed, self._values = base64.b64decode(held["seed"]), held["values"]
        # Those that change are read again before their first use.
        self._read_at = dict.fromkeys(self._values, -math.inf)

    def enter(self) -> None:
        """Begin to use the secrets, as a session or a branch."""
        self._users += 1
        Template.enter()  # the first connection needs it, and it takes a while to start

    def leave(self) -> None:
        """Stop using the secrets. The last user ends the turnkey."""
        self._users -= 1
        if not self._users:
            self.stop()
        Template.leave()

    def make_bundle(self, path: str) -> None:
        """Write the certificates that the session trusts.

        Args:
            path: The path outside.
        """
        from cellblock.walls.keys.authority import authority_certificate

        trust.make_bundle(path, authority_certificate(self._seed))

    async def read(self) -> None:
        """Read the missing and outdated values.

        Raises:
            InvalidInputError: A value cannot be read.
        """
        changed = False
        for binding in self._bindings:
            age = time.monotonic() - self._read_at.get(binding.name, -math.inf)
            refresh = binding.secret.refresh
            if binding.name in self._values and (refresh is None or age < refresh):
                continue
            value = await read_value(binding.name, binding.secret)
            changed |= value != self._values.get(binding.name)
            self._values[binding.name], self._read_at[binding.name] = value, time.monotonic()
        if len(json.dumps(self._settings())) > MESSAGE // 2:
            raise InvalidInputError(f"the secrets of a session can have {MESSAGE // 2:,} bytes together")
        if changed and self._control is not None:
            await self._send({"secrets": self._settings()["secrets"]})

    def opens(self, target: Target) -> bool:
        """Return whether connections to a target are opened."""
        return str(target) in self._hosts

    def has_placeholder(self, texts: Sequence[bytes]) -> bool:
        """Return whether a text contains the placeholder of a secret."""
        from cellblock.walls.keys.fill import has_placeholder

        return has_placeholder(texts)

    async def serve(
        self,
        target: Target,
        client: socket.socket,
        upstream: socket.socket,
        early: bytes,
        judge: RequestJudge,
        redial: Redial,
    ) -> None:
        """Let the turnkey serve a connection, and wait for its end.

        Args:
            target: The target.
            client: The socket of the client, which stays the caller's.
            upstream: The socket of the server, likewise.
            early: Bytes that the client sent ahead.
            judge: Decides about its requests.
            redial: Connects to the server again, after a person has decided.

        Raises:
            OSError: The turnkey could not be started, or has died.
        """
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._number += 1
        number = self._number
        served = _Served(target, client, judge, redial, asyncio.get_running_loop().create_future())
        self._waiting[number] = served
        try:
            async with self._starting:
                try:
                    await self.read()
                except InvalidInputError as error:
                    raise ConnectionAbortedError(str(error)) from error
                if self._control is None:
                    await self._start()
                message = {"id": number, "at": str(target), "early": base64.b64encode(early).decode()}
                message["judged"] = judge.names(target) or self._asks_at(target)
                await self._send(message, [client.fileno(), upstream.fileno()])
            await served.ended
        finally:
            del self._waiting[number]
            if served.judging is not None:
                served.judging.cancel()
            if not self._waiting and self._control is not None:
                self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self.stop)
            for end in (client, upstream, *([] if served.fresh is None else [served.fresh])):
                # The turnkey has its own descriptors of these connections.
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            if served.fresh is not None:
                served.fresh.close()

    def stop(self) -> None:
        """End the turnkey. The next connection starts another one."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        control, self._control = self._control, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        for served in self._waiting.values():
            if not served.ended.done():
                served.ended.set_exception(ConnectionAbortedError("the turnkey has ended"))

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                ours.setsockopt(socket.SOL_SOCKET, option, 2 * MESSAGE)
            Template.current().fork(theirs)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._readable, ours)
        await self._send(self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "seed": base64.b64encode(self._seed).decode(),
            "limits": asdict(self._limits),
            "ruled": self._ruled,
            "secrets": [described(binding, self._seed, self._values[binding.name]) for binding in self._bindings],
        }

    async def _send(self, message: Mapping[str, Any], descriptors: list[int] | None = None) -> None:
        assert self._control is not None
        data = json.dumps(message).encode()
        while True:
            try:
                socket.send_fds(self._control, [data], descriptors or [])
            except (BlockingIOError, InterruptedError):
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def _readable(self, control: socket.socket) -> None:
        try:
            data = control.recv(MESSAGE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.stop()
            return
        try:
            said = parse_json(data, what="a message of a turnkey")
            if "log" in said:
                self.requests.extend(said["log"])
            elif "ended" in said:
                served = self._waiting.get(said["ended"])
                if served is not None and not served.ended.done():
                    served.ended.set_result(None)
            elif (served := self._waiting.get(said["id"])) is not None:
                self._on_request(said["id"], served, said)
        except (InvalidInputError, KeyError, TypeError, ValueError, _BrokenError):  # a server may have taken it over
            self.stop()

    # --- Requests that are judged

    def _on_request(self, number: int, served: _Served, said: Mapping[str, Any]) -> None:
        """Take a question of the turnkey about the present request of a connection, or a piece of its body."""
        if "piece" in said or "large" in said:
            self._on_body(served, said)
            return
        if served.judging is not None:
            raise _BrokenError("a connection has one request at a time")
        method, url, names = said["method"], said["url"], said["secrets"]
        texts = [method, url, *names]
        if not isinstance(names, list) or not all(isinstance(text, str) for text in texts) or not set(names) <= self.names:
            raise _BrokenError("a request has texts")
        request = JudgedRequest(served.target, method, url, secrets=tuple(names))
        served.judging = asyncio.get_running_loop().create_task(self._judge(number, served, request))
        self._judging.add(served.judging)
        served.judging.add_done_callback(self._judging.discard)

    def _on_body(self, served: _Served, said: Mapping[str, Any]) -> None:
        if served.body is None or served.body.done():
            if served.judging is None or served.body is None:
                raise _BrokenError("no body was requested")
            return
        if "large" in said:
            served.body.set_result(None)
            return
        served.pieces += base64.b64decode(said["piece"], validate=True)
        if len(served.pieces) > MOST_BODY:
            raise _BrokenError("the body is larger than announced")
        if said["last"] is True:
            served.body.set_result(bytes(served.pieces))

    async def _judge(self, number: int, served: _Served, request: JudgedRequest) -> None:
        """Decide about a request, and tell the turnkey."""
        try:
            refused, upstream = await self._decide(number, served, request)
            asked, served.judging, served.body = served.body is not None, None, None
            served.pieces.clear()
            answer = None if refused is None else [refused.status, refused.text]
            message = {"id": number, "refused": answer, "fresh": upstream is not None}
            if asked and upstream is not None:
                if served.fresh is not None:
                    served.fresh.close()
                served.fresh = upstream
            await self._send(message, [] if upstream is None else [upstream.fileno()])
        except Exception as error:
            if not served.ended.done():
                served.ended.set_exception(ConnectionAbortedError(f"the request could not be judged: {error}"))
            if not isinstance(error, OSError):
                raise

    async def _decide(
        self, number: int, served: _Served, request: JudgedRequest
    ) -> tuple[RefusedRequest | None, socket.socket | None]:
        """Return the refusal, or None; and after a question a new connection: the server may have closed the silent one."""

        async def body() -> bytes | None:
            served.body = asyncio.get_running_loop().create_future()
            await self._send({"id": number, "wanted": True})
            return await served.body

        asking = {name for name in request.secrets if self._asks_about(name)}
        refused = await served.judge.decide(request, served.client, body, ask=bool(asking))
        if refused is not None or served.body is None:
            return refused, None
        self._approved |= asking
        try:
            return None, await served.redial()
        except DeniedError as error:
            return RefusedRequest(403, str(error)), None
        except UnreachableError as error:
            return RefusedRequest(504 if error.cause == "timeout" else 502, str(error)), None

    def _asks_at(self, target: Target) -> bool:
        """Return whether a secret of a host needs a question."""
        return any(binding.secret.ask and str(target) in binding.hosts for binding in self._bindings)

    def _asks_about(self, name: str) -> bool:
        binding = next(binding for binding in self._bindings if binding.name == name)
        return binding.secret.ask == "each" or (binding.secret.ask == "first" and name not in self._approved)
