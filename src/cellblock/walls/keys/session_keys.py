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
from typing import Any, ClassVar, TypeAlias
from weakref import WeakSet

from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError, ProtocolError, shown
from cellblock.model.overview import RequestRecord, SecretRecord
from cellblock.walls.egress.gate import DeniedError, EgressLimits, UnreachableError
from cellblock.walls.egress.judge import MOST_BODY, JudgedRequest, RefusedRequest, RequestJudge
from cellblock.walls.egress.names import Target
from cellblock.walls.keys import trust
from cellblock.walls.keys.bindings import Binding, bind, described, patterns
from cellblock.walls.keys.messages import (
    MESSAGE,
    Ended,
    Log,
    Piece,
    Question,
    Report,
    TooLarge,
    parse_report,
)
from cellblock.walls.keys.sources import completed, entries, read_value
from cellblock.walls.keys.template_process import Template
from cellblock.wire.sandbox import Step

_IDLE_SECONDS = 60.0
_REQUESTS = 1000
_RETRY_SECONDS = 0.01
_FORMER = 4
"""Replaced values of a secret that are still searched for in responses."""
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
        requests: The last requests of opened connections: no query, header or body.
        watchers: Called after each change of a value, and each removal.
    """

    _all: ClassVar[WeakSet[SessionKeys]] = WeakSet()

    def __init__(self, bindings: tuple[Binding, ...], ruled: Iterable[str] = ()) -> None:
        self._bindings = bindings
        self._ruled = sorted(set(ruled))
        self._approved: set[str] = set()
        self._judging: set[asyncio.Task[None]] = set()
        self.patterns = patterns(bindings)
        self._seed = secrets.token_bytes(32)
        self._values: dict[str, str] = {}
        self._former: dict[str, list[str]] = {}
        self._removed: set[str] = set()
        self._read_at: dict[str, float] = {}
        self._used_at: dict[str, float] = {}
        self.watchers: set[Callable[[], object]] = set()
        self._users = 0
        self._hosts = frozenset(host for binding in bindings for host in binding.hosts)
        self._known_hosts = set(self._hosts)
        self.requests: deque[RequestRecord] = deque(maxlen=_REQUESTS)
        self._limits = EgressLimits()
        self._control: socket.socket | None = None
        self._waiting: dict[int, _Served] = {}
        self._number = 0
        self._changing: dict[int, asyncio.Future[None]] = {}
        self._starting = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._all.add(self)

    @property
    def removed(self) -> frozenset[str]:
        """The names of the removed secrets."""
        return frozenset(self._removed)

    @property
    def names(self) -> set[str]:
        """The names of the secrets."""
        return {binding.name for binding in self._bindings}

    @property
    def records(self) -> list[SecretRecord]:
        """The secrets without their values, except removed ones."""
        left = [binding for binding in self._bindings if binding.name not in self._removed]
        return [binding.record(self._used_at.get(binding.name)) for binding in left]

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
        held = {"seed": base64.b64encode(self._seed).decode(), "values": self._values}
        data = json.dumps({**held, "former": self._former, "removed": sorted(self._removed)}).encode()
        os.write(descriptor, data)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor

    def resume(self, descriptor: int) -> None:
        """Take over the seed, the values and the removals of an earlier host from `hold`, and close the descriptor."""
        with open(descriptor, "rb") as file:
            file.seek(0)
            held = json.loads(file.read())
        self._seed, self._values = base64.b64decode(held["seed"]), held["values"]
        self._former, self._removed = held.get("former", {}), set(held.get("removed", ()))
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
            if binding.name in self._removed:
                continue
            age = time.monotonic() - self._read_at.get(binding.name, -math.inf)
            refresh = binding.secret.refresh
            if binding.name in self._values and (refresh is None or age < refresh):
                continue
            changed |= self._take(binding.name, await read_value(binding.name, binding.secret))
        self._check_room()
        if changed:
            await self._changed()

    def _check_room(self, more: int = 0) -> None:
        """Check that a message has room for all secrets and some more bytes. Forget former values first.

        Raises:
            InvalidInputError: It has no room.
        """
        while len(json.dumps(self._settings())) + more > MESSAGE // 2:
            if not self._former:
                raise InvalidInputError(f"the secrets of a session can have {MESSAGE // 2:,} bytes together")
            self._former.popitem()

    def _take(self, name: str, value: str) -> bool:
        """Set the value of a secret. Return whether it has changed."""
        former, self._read_at[name] = self._values.get(name), time.monotonic()
        self._values[name] = value
        if former in (None, value):
            return former is None
        # The host may still return it.
        self._former[name] = [former, *self._former.get(name, ())][:_FORMER]
        return True

    async def refresh(self, name: str) -> None:
        """Read the value of a secret again, for the session and its branches. Running requests keep the previous value.

        Raises:
            InvalidInputError: The session has no such secret, or the value cannot be read. Nothing has changed.
        """
        binding = self._binding(name)
        value = await read_value(name, binding.secret)
        self._check_room(len(json.dumps(value)))
        for keys in self._family():
            await keys.take(name, value)

    async def take(self, name: str, value: str) -> None:
        """Use a value for a secret from now on, unless it was removed."""
        async with self._starting:
            if name not in self._removed and self._take(name, value):
                await self._changed()

    async def remove(self, name: str) -> None:
        """Remove a secret from the session and its branches, irrevocably. Later requests with its placeholder are refused.

        Raises:
            InvalidInputError: The session has no such secret.
        """
        self._binding(name)
        family = self._family()
        for keys in family:
            keys.forget(name)
        for keys in family:
            await keys.announce()

    def forget(self, name: str) -> None:
        """Remove a secret from later settings of the turnkey."""
        self._removed.add(name)

    async def announce(self) -> None:
        """Tell the turnkey about removals, and wait until it has received them."""
        async with self._starting:
            await self._changed()

    def _binding(self, name: str) -> Binding:
        for binding in self._bindings:
            if binding.name == name and name not in self._removed:
                return binding
        left = ", ".join(sorted(self.names - self._removed)) or "none"
        raise InvalidInputError(f"the session has no secret {shown(name)}; it has: {left}")

    def _family(self) -> list[SessionKeys]:
        """Return all objects for this session and its branches: after a restart of the host, each has its own."""
        return [keys for keys in self._all if keys.has_seed(self._seed)]

    def has_seed(self, seed: bytes) -> bool:
        """Return whether a seed is this session's."""
        return seed == self._seed

    async def _changed(self) -> None:
        """Tell the turnkey and the watchers about a change, and wait until later requests use it."""
        for watcher in tuple(self.watchers):
            watcher()
        if self._control is None:
            return
        self._number += 1
        number, done = self._number, asyncio.get_running_loop().create_future()
        self._changing[number] = done
        try:
            await self._send({"secrets": self._settings()["secrets"], "change": number})
            await done
        except OSError:
            pass  # it has ended: the next one begins with the change
        finally:
            del self._changing[number]

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
        self._known_hosts.add(str(target))
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
        for ended in (*(served.ended for served in self._waiting.values()), *self._changing.values()):
            if not ended.done():
                ended.set_exception(ConnectionAbortedError("the turnkey has ended"))

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
            "secrets": [
                described(binding, self._seed, self._values[binding.name])
                | {"former": self._former.get(binding.name, []), "removed": binding.name in self._removed}
                for binding in self._bindings
                if binding.name in self._values
            ],
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
            self._on_report(parse_report(data, self._known_hosts, self.names))
        except (InvalidInputError, ProtocolError):  # a server may have taken it over
            self.stop()

    def _on_report(self, report: Report) -> None:
        if isinstance(report, Log):
            self._note(report.records)
        elif isinstance(report, Ended):
            served = self._waiting.get(report.ended)
            ended = self._changing.get(report.ended) if served is None else served.ended
            if ended is not None and not ended.done():
                ended.set_result(None)
        elif (served := self._waiting.get(report.id)) is not None:
            if isinstance(report, Question):
                self._on_question(served, report)
            else:
                self._on_body(served, report)

    def _note(self, requests: Sequence[RequestRecord]) -> None:
        self.requests.extend(requests)
        for one in requests:
            for name in one.secrets if one.decision == "allowed" else ():
                self._used_at[name] = max(one.at, self._used_at.get(name, 0.0))

    # --- Requests that are judged

    def _on_question(self, served: _Served, question: Question) -> None:
        """Decide about the present request of a connection."""
        if served.judging is not None:
            raise ProtocolError("a connection has one request at a time")
        request = JudgedRequest(served.target, question.method, question.url, secrets=question.secrets)
        served.judging = asyncio.get_running_loop().create_task(self._judge(question.id, served, request))
        self._judging.add(served.judging)
        served.judging.add_done_callback(self._judging.discard)

    def _on_body(self, served: _Served, said: Piece | TooLarge) -> None:
        if served.body is None or served.body.done():
            if served.judging is None or served.body is None:
                raise ProtocolError("no body was requested")
            return
        if isinstance(said, TooLarge):
            served.body.set_result(None)
            return
        served.pieces += said.content
        if len(served.pieces) > MOST_BODY:
            raise ProtocolError("the body is larger than announced")
        if said.last:
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
