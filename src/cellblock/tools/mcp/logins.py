"""Stored logins at MCP servers: tokens, and what their renewal needs. Only the host reads them.

A login is bound to the server's name and URL, and to the issuer of its tokens. It is an entry in the keyring if the package
``keyring`` is installed and protects its entries, otherwise a file in the state directory.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any

from cellblock.common import config
from cellblock.common.terminal import printable
from cellblock.common.whole_file import WholeFile
from cellblock.errors import StoreError
from cellblock.tools.mcp.params import SCOPE, RemoteServer

_MAX = 1024 * 1024
_SECONDS_TO_LOCK = 60.0
_PAUSE = 0.02
_CHALLENGE = re.compile(r'(?<![a-z_])(error|error_description|scope|resource_metadata)=(?:"([^"]*)"|([^\s,]+))')
_MAX_SCOPES = 50


@dataclass(frozen=True, slots=True)
class Login:
    """A login. The client, the tokens and the metadata of issuer and server are JSON of the SDK's models."""

    server: str
    url: str
    issuer: str
    client: Mapping[str, Any] = field(repr=False)
    token: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, Any] | None
    resource: Mapping[str, Any] | None
    expires: float | None  # seconds since 1970; None: unknown
    missing: tuple[str, ...] = ()  # scopes that the server asked for in addition
    written: float = 0.0

    @property
    def scopes(self) -> list[str]:
        """The granted scopes."""
        return str(self.token.get("scope") or "").split()


class LoginStore:
    """The stored login at one server, which all processes of this user share.

    Args:
        server: The server's name.
        params: The server's parameters, resolved.
    """

    def __init__(self, server: str, params: RemoteServer) -> None:
        self._bound = server, params.url, params.auth and params.auth.client_id
        digest = hashlib.sha256(json.dumps(self._bound[:2]).encode()).hexdigest()[:32]
        self._directory = config.state_directory() / "logins"
        self._path, self._lock = self._directory / f"{digest}.json", self._directory / f"{digest}.lock"
        self._entry = "cellblock", f"{server[:100]} {digest}"

    def version(self) -> int:
        """Return a number that changes with the login."""
        try:
            return self._lock.stat().st_mtime_ns
        except OSError:
            return 0

    def read(self) -> Login | None:
        """Return the login for this name, URL and client, or None.

        Raises:
            StoreError: It cannot be read.
        """
        with self._told():
            # There are two if the keyring could not be used at some time, or a process ended while it wrote.
            texts = [config.read_file(self._path, _MAX, os.O_NOFOLLOW)] if self._path.exists() else []
            if (keyring := _keyring()) is not None:
                with suppress(keyring.errors.KeyringError):
                    texts += [text.encode() for text in [keyring.get_password(*self._entry)] if text]
            found = [Login(**data) for data in map(json.loads, texts)]
            login = max(found, key=lambda each: each.written, default=None)
            if login is None or (login.server, login.url) != self._bound[:2]:
                return None
            issuers = [login.issuer, (login.metadata or {}).get("issuer"), login.client.get("issuer")]
            if (
                self._bound[2] not in (None, login.client["client_id"])
                or len({each.rstrip("/") for each in issuers if each}) > 1
            ):
                return None
            return replace(login, missing=tuple(login.missing))

    def write(self, login: Login) -> None:
        """Replace the login. Only the owner of the lock may.

        Raises:
            StoreError: It cannot be written.
        """
        text = json.dumps(asdict(replace(login, written=time.time())))
        with self._told():
            if (keyring := _keyring()) is not None:
                with suppress(keyring.errors.KeyringError):  # then a file, because a renewed token must not be lost
                    keyring.set_password(*self._entry, text)
                    self._path.unlink(missing_ok=True)
                    return self._change()
            with WholeFile(self._path, 0o600) as file:
                file.write(text.encode())
            return self._change()

    async def log_out(self) -> bool:
        """Remove the login, even a damaged one; return whether there was one.

        Raises:
            StoreError: It cannot be removed.
        """
        async with self.locked():
            with self._told():
                found = self._path.exists()
                self._path.unlink(missing_ok=True)
                if (keyring := _keyring()) is not None:
                    with suppress(keyring.errors.KeyringError):  # mostly: there is no entry
                        keyring.delete_password(*self._entry)
                        found = True
                self._change()
        return found

    def _change(self) -> None:
        now = max(time.time_ns(), self.version() + 1)
        os.utime(self._lock, ns=(now, now))

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Exclude all other processes and tasks that would change the login.

        Raises:
            StoreError: The lock cannot be had.
        """
        with self._told():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._directory.stat()
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise OSError(f"others can read or change {self._directory}: chmod 700 it")
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            end = time.monotonic() + _SECONDS_TO_LOCK
            # A thread that waits for the lock could get it after this task was cancelled.
            while not _lock(descriptor):
                if time.monotonic() > end:
                    raise StoreError(f"another process uses the login at {self._bound[0]!r} for too long: {self._lock}")
                await asyncio.sleep(_PAUSE)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, TypeError, KeyError) as error:
            name = self._bound[0]
            raise StoreError(f"the login at {name!r} in {self._path} cannot be used: {error}; {command(name)}") from error


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _keyring() -> Any:
    """Return the package ``keyring``; None without it, or if its backend does not protect entries."""
    try:
        keyring = import_module("keyring")
        import_module("keyring.errors")
        return keyring if keyring.get_keyring().priority >= 1 else None
    except Exception:  # backends are plugins and raise any kind; a file always works
        return None


def command(server: str) -> str:
    """Return the command that logs in at a server."""
    return f"cellblock tools login {shlex.quote(server)}"


def needs_login(server: str) -> str:
    """Return the message that a person must log in."""
    return f"{server!r} needs a login: {command(server)}"


def challenge_of(header: str) -> dict[str, str]:
    """Return the parameters of a header ``WWW-Authenticate`` that describe a login."""
    return {name: quoted or bare for name, quoted, bare in _CHALLENGE.findall(header[:8192])}


def scopes_in(text: str) -> list[str]:
    """Return the valid scopes of a list that a server sent, up to a limit."""
    return [scope for scope in text.split() if len(scope) <= 200 and SCOPE.fullmatch(scope)][:_MAX_SCOPES]


def refusal_of(server: str, params: RemoteServer, status: int, header: str) -> str:
    """Return the message about a status and a header ``WWW-Authenticate`` if a login can help; else an empty text."""
    # Other headers can be keys: then, only a challenge is about a login.
    if status == 401 and not params.has_key and (params.auth or not params.headers or "bearer" in header[:8192].lower()):
        return needs_login(server)
    challenge = challenge_of(header)
    if status != 403 or params.auth is None or challenge.get("error") != "insufficient_scope":
        return ""
    # The SDK's servers name scopes in the description only.
    wanted = " ".join(scopes_in(challenge.get("scope", ""))) or printable(
        challenge.get("error_description", "")[:200], lines=False
    )
    return f"{server!r} needs more scopes ({wanted}): {command(server)}"
