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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError, shown
from cellblock.walls.egress.gate import EgressLimits
from cellblock.walls.egress.names import Target
from cellblock.walls.keys.sigv4 import covers
from cellblock.walls.keys.trust import SessionTrust

if TYPE_CHECKING:
    from cellblock.model.overview import RequestRecord, SecretRecord
    from cellblock.walls.egress.judge import Handover, RequestJudge
    from cellblock.walls.keys.bindings import Binding
    from cellblock.walls.keys.turnkey_link import TurnkeyLink

# Most sessions with a network have no secrets and no request lines: what only those need is imported late.

_REQUESTS = 1000
_FORMER = 4
"""Replaced values of a secret that are still searched for in responses."""
_TURNKEYS = 8
"""Turnkeys of one session. Most end after their last connection."""
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def bindings_of(declared: Mapping[str, Mapping[str, Any]]) -> tuple[Binding, ...]:
    """Return the bindings of declared secrets.

    Args:
        declared: From `parse_secrets`.

    Raises:
        InvalidInputError: A secret has no host, or ``secrets.toml`` is invalid.
        UnsupportedError: The extra ``keys`` is not installed.
    """
    from cellblock.walls.keys.bindings import bind
    from cellblock.walls.keys.sources import completed, entries

    require_extra("keys", "secrets")
    known = entries()
    return tuple(bind(name, completed(name, data, known)) for name, data in declared.items())


class SessionKeys:
    """The secrets of one session and its branches, and the processes that open connections to ruled hosts.

    Args:
        bindings: The secrets.
        needed: Whether connections are opened from the start: there are secrets, or request lines or rules.
        roots: As for `SessionTrust`.

    Attributes:
        requests: The last requests of opened connections: no query, header or body.
        trust: The certificates of the session.
        watchers: Called after each change of a value, each removal, and when connections are first opened.
    """

    _all: ClassVar[WeakSet[SessionKeys]] = WeakSet()

    def __init__(self, bindings: tuple[Binding, ...] = (), *, needed: bool = True, roots: bytes = b"") -> None:
        self._bindings = bindings
        self._needed = needed
        self._seed = secrets.token_bytes(32)
        self._values: dict[str, str] = {}
        self._former: dict[str, list[str]] = {}
        self._removed: set[str] = set()
        self._read_at: dict[str, float] = {}
        self._used_at: dict[str, float] = {}
        self.watchers: set[Callable[[], object]] = set()
        self._users = 0
        self._uses_template = False
        self._hosts = frozenset(host for binding in bindings for host in binding.hosts)
        self._asking: dict[str, str] = {binding.name: binding.secret.ask for binding in bindings if binding.secret.ask}
        self.requests: deque[RequestRecord] = deque(maxlen=_REQUESTS)
        self.trust = SessionTrust(roots, needed=needed)
        self._limits = EgressLimits()
        self._turnkeys: list[TurnkeyLink] = []
        self._starting = asyncio.Lock()
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

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the session: placeholders, and where the certificates are."""
        return self.trust.environment | self.variables

    @property
    def variables(self) -> dict[str, str]:
        """The variables with placeholders."""
        return {name: value for binding in self._bindings for name, value in binding.variables(self._seed).items()}

    def hold(self) -> int:
        """Return a descriptor of a sealed file in memory with the seed and the values, for the next host of the session."""
        descriptor = os.memfd_create("keys", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        held: dict[str, Any] = {"seed": base64.b64encode(self._seed).decode(), "values": self._values}
        held |= {"former": self._former, "removed": sorted(self._removed)}
        held |= {"certificate": self.trust.certificate.decode(), "mounted": self.trust.mounted}
        data = json.dumps(held).encode()
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
        self.trust.certificate, self.trust.mounted = held.get("certificate", "").encode(), held.get("mounted", True)
        # Those that change are read again before their first use.
        self._read_at = dict.fromkeys(self._values, -math.inf)

    async def enter(self, bundle: str) -> None:
        """Begin to use the secrets, as a session or a branch.

        Args:
            bundle: The path of the session's certificates outside (`SessionTrust.make`), which may exist already.

        Raises:
            UnsupportedError: The extra ``keys`` is needed, and not installed.
        """
        self._users += 1
        self.trust.take(bundle)
        if self._needed and self.trust.mounted:
            await self.make_ready()
        elif self.trust.certificate:
            self._use_template()

    async def make_ready(self) -> None:
        """Have the programs of the session and its branches trust opened connections from now on. Idempotent.

        Raises:
            StateError: The session has no certificates to add to. The message says what to do.
            UnsupportedError: The extra ``keys`` is not installed.
        """
        for keys in self._family():
            await keys.use()

    async def use(self) -> None:
        """Do the same for this object's session alone.

        Raises:
            StateError, UnsupportedError: As for `make_ready`.
        """
        added = await self.trust.add(self._seed)
        self._use_template()
        if added:
            for watcher in tuple(self.watchers):
                watcher()

    def _use_template(self) -> None:
        """Start the template: the first connection needs it, and it takes a while to start."""
        if self._users and not self._uses_template:
            from cellblock.walls.keys.template_process import Template

            self._uses_template = True
            Template.enter()

    def leave(self) -> None:
        """Stop using the secrets. The last user ends the turnkeys."""
        self._users -= 1
        if self._users:
            return
        self.stop()
        self.trust.close()
        if self._uses_template:
            from cellblock.walls.keys.template_process import Template

            self._uses_template = False
            Template.leave()

    async def read(self) -> None:
        """Read the missing and outdated values.

        Raises:
            InvalidInputError: A value cannot be read.
        """
        if not self._bindings:
            return
        from cellblock.walls.keys.sources import read_value

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
        from cellblock.walls.keys.messages import MESSAGE

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
        from cellblock.walls.keys.sources import read_value

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
        """Tell the turnkeys and the watchers about a change, and wait until later requests use it."""
        for watcher in tuple(self.watchers):
            watcher()
        secrets = self._settings()["secrets"]
        for turnkey in [*self._turnkeys]:
            await turnkey.change(secrets)

    def opens(self, target: Target) -> bool:
        """Return whether connections to a target are opened."""
        return covers([*self._hosts], str(target))

    def has_placeholder(self, texts: Sequence[bytes]) -> bool:
        """Return whether a text contains the placeholder of a secret."""
        from cellblock.walls.keys.fill import has_placeholder

        return has_placeholder(texts)

    async def serve(self, handover: Handover) -> None:
        """Let a turnkey serve a connection, and wait for its end.

        Raises:
            OSError: A turnkey could not be started, or has died.
        """
        at = str(handover.target)
        handover.judged |= any(binding.secret.ask != "" and covers(binding.hosts, at) for binding in self._bindings)
        try:
            async with self._starting:
                try:
                    await self.read()
                except InvalidInputError as error:
                    raise ConnectionAbortedError(str(error)) from error
                turnkey = await self._turnkey(handover.target, handover.judge)
                number = await turnkey.begin(handover)
            await turnkey.finish(number)
        finally:
            for end in (handover.client, handover.upstream):
                # The turnkey has its own descriptors of these connections.
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    async def _turnkey(self, target: Target, judge: RequestJudge) -> TurnkeyLink:
        """Return the turnkey for the next connection: a new one, if the last one has no certificate for the host.

        A confined process cannot load another certificate. The connections of the last one continue there.
        """
        from cellblock.walls.keys.turnkey_link import TurnkeyLink

        self._turnkeys = [turnkey for turnkey in self._turnkeys if turnkey.alive]
        for oldest in self._turnkeys[: -_TURNKEYS + 1]:
            oldest.stop()
        if self._turnkeys and self._turnkeys[-1].serves(target):
            return self._turnkeys[-1]
        hosts = {*self._hosts, *judge.authorities, str(target), *(self._turnkeys[-1].hosts if self._turnkeys else ())}
        turnkey = TurnkeyLink(hosts, self.names, self._asking, self._note)
        try:
            await turnkey.start(self._settings())
        except BaseException:
            turnkey.stop()
            raise
        if self._turnkeys:
            self._turnkeys[-1].retire()
        self._turnkeys.append(turnkey)
        return turnkey

    def stop(self) -> None:
        """End the turnkeys. The next connection starts another one."""
        for turnkey in self._turnkeys:
            turnkey.stop()
        self._turnkeys.clear()

    def _settings(self) -> dict[str, Any]:
        from cellblock.walls.keys.bindings import described

        return {
            "seed": base64.b64encode(self._seed).decode(),
            "limits": asdict(self._limits),
            "roots": self.trust.roots.decode(),
            "secrets": [
                described(binding, self._seed, self._values[binding.name])
                | {"former": self._former.get(binding.name, []), "removed": binding.name in self._removed}
                for binding in self._bindings
                if binding.name in self._values
            ],
        }

    def _note(self, requests: Sequence[RequestRecord]) -> None:
        self.requests.extend(requests)
        for one in requests:
            for name in one.secrets if one.decision == "allowed" else ():
                self._used_at[name] = max(one.at, self._used_at.get(name, 0.0))
