"""Bearer tokens for the gateway, and their scopes. Only digests are stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from cellblock.common import config
from cellblock.common.database import Database
from cellblock.errors import AccessError, InvalidInputError, NotFoundError

Scope = Literal["read", "run", "approve", "admin"]
"""``read``: view sessions, results and files. ``run``: also make sessions and run code in them. ``approve``: view, and decide
about pending requests. ``admin``: everything, including choosing the options of sessions and ending all."""

SCOPES: tuple[Scope, ...] = get_args(Scope)

_IMPLIED: dict[Scope, frozenset[Scope]] = {
    "read": frozenset(("read",)),
    "run": frozenset(("read", "run")),
    "approve": frozenset(("read", "approve")),
    "admin": frozenset(SCOPES),
}
_FORM = re.compile(r"cb_([0-9a-f]{8})_[\w-]{43}", re.ASCII)
_MAX_KNOWN = 1024
_FILE = "tokens.db"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    scopes TEXT NOT NULL,
    session TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL
) STRICT;
CREATE TABLE IF NOT EXISTS codes (
    digest BLOB PRIMARY KEY,
    scopes TEXT NOT NULL,
    expires REAL NOT NULL
) STRICT
"""
_ADD_CODE = "INSERT INTO codes (digest, scopes, expires) VALUES (?, ?, ?)"
_TAKE_CODE = "DELETE FROM codes WHERE digest = ? RETURNING scopes, expires"
_FIND_CODE = "SELECT expires FROM codes WHERE digest = ?"
_DROP_CODES = "DELETE FROM codes WHERE expires <= ?"
CODE_SECONDS = 120.0
"""For how long a code can be exchanged for a token."""
_LOGIN_SECONDS = 12 * 3600.0
_LOGIN = "console"
_INSERT = "INSERT INTO tokens (id, name, scopes, session, created, expires, digest) VALUES (?, ?, ?, ?, ?, ?, ?)"
_LIST = "SELECT id, name, scopes, session, created, expires FROM tokens ORDER BY created, id"
_FIND = "SELECT id, name, scopes, session, created, expires, digest FROM tokens WHERE id = ?"
_REVOKE = "DELETE FROM tokens WHERE id = ? RETURNING id, name, scopes, session, created, expires"


@dataclass(frozen=True, slots=True)
class Token:
    """The description of a token. The token itself is shown once, at its creation.

    Attributes:
        id: The id for revocation.
        name: The purpose, in the creator's words.
        scopes: The scopes.
        session: The name or id of the only permitted session; empty for all.
        created: When the token was created, in seconds since the epoch.
        expires: When the token expires, or None.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    session: str = ""
    created: float = 0.0
    expires: float | None = None

    def may(self, scope: Scope) -> bool:
        """Return whether the token has a scope, or one that implies it."""
        return any(scope in _IMPLIED[own] for own in self.scopes)

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain JSON data."""
        return {
            "id": self.id,
            "name": self.name,
            "scopes": [scope for scope in SCOPES if scope in self.scopes],
            "session": self.session,
            "created": self.created,
            "expires": self.expires,
        }


class Tokens:
    """The tokens of one state directory.

    Args:
        directory: The directory; `config.state_directory` by default.

    Raises:
        StoreError: The directory or the file cannot be used.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._database = Database(config.state_directory() if directory is None else directory, _FILE, _SCHEMA)

    def create(
        self, name: str, scopes: Iterable[str] = ("run",), *, session: str = "", lifetime: float | None = None
    ) -> tuple[str, Token]:
        """Create a token.

        Args:
            name: The purpose.
            scopes: The scopes.
            session: The name or id of the only permitted session; empty for all.
            lifetime: Seconds until it expires; None: never.

        Returns:
            The token, which cannot be shown again, and its description.

        Raises:
            InvalidInputError: A scope does not exist, or another argument is invalid.
        """
        wanted = _checked(scopes)
        if session and "admin" in wanted:
            raise InvalidInputError("a token for one session cannot have the scope admin")
        if len(name) > 200 or len(session) > 200:
            raise InvalidInputError("a token's name and session have at most 200 characters")
        if lifetime is not None and not 0 < lifetime < 1e10:
            raise InvalidInputError(f"a token's lifetime is a number of seconds, not {lifetime!r}")
        number, now = secrets.token_hex(4), time.time()
        text = f"cb_{number}_{secrets.token_urlsafe(32)}"
        token = Token(
            number,
            name,
            frozenset(scope for scope in SCOPES if scope in wanted),
            session,
            now,
            None if lifetime is None else now + lifetime,
        )
        with self._database.transaction() as connection:
            connection.execute(
                _INSERT,
                (number, name, " ".join(sorted(wanted)), session, now, token.expires, digest_of(text)),
            )
        return text, token

    def all(self) -> list[Token]:
        """Return all tokens, oldest first, including expired ones."""
        with self._database.reading() as connection:
            return [_token(row) for row in connection.execute(_LIST)]

    def revoke(self, number: str) -> Token:
        """Revoke a token, at once and for every gateway.

        Args:
            number: The token's id.

        Returns:
            The token's description.

        Raises:
            NotFoundError: The token does not exist.
        """
        with self._database.transaction() as connection:
            row = connection.execute(_REVOKE, (number,)).fetchone()
        if row is None:
            raise NotFoundError(f"there is no token with the id {number[:40]!r}: `cellblock tokens list` shows the ids")
        return _token(row)

    def create_code(self, scopes: Iterable[str]) -> str:
        """Create a short-lived code that can be exchanged once for a token, so that the code can be part of a URL.

        Args:
            scopes: The scopes of the token.

        Raises:
            InvalidInputError: A scope does not exist.
        """
        wanted, now = _checked(scopes), time.time()
        text = secrets.token_urlsafe(32)
        with self._database.transaction() as connection:
            connection.execute(_DROP_CODES, (now,))
            connection.execute(_ADD_CODE, (digest_of(text), " ".join(sorted(wanted)), now + CODE_SECONDS))
        return text

    def waits(self, code: str) -> bool:
        """Return whether a code can still be exchanged."""
        with self._database.reading() as connection:
            row = connection.execute(_FIND_CODE, (digest_of(code),)).fetchone()
        return row is not None and row[0] > time.time()

    def exchange(self, code: str) -> str:
        """Exchange a code for a token, and invalidate the code.

        Raises:
            AccessError: The code does not exist, has expired, or was already exchanged.
        """
        with self._database.transaction() as connection:
            row = connection.execute(_TAKE_CODE, (digest_of(code),)).fetchone()
        if row is None or row[1] <= time.time():
            raise AccessError("this login was used before, or is too old: run 'cellblock console' again")
        return self.create(_LOGIN, row[0].split(), lifetime=_LOGIN_SECONDS)[0]

    def check(self) -> TokenCheck:
        """Return a token checker for a server."""
        return TokenCheck(self._database)


class TokenCheck:
    """A checker of tokens against the store, for one thread. A revocation takes effect at the next check."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._version: tuple[int, ...] = ()
        self._known: dict[bytes, Token] = {}

    def __call__(self, text: str) -> Token | None:
        """Return the description of a token; None if the token is invalid.

        Raises:
            StoreError: The store cannot be read, so no token is valid.
        """
        form = _FORM.fullmatch(text)
        if form is None:
            return None
        digest = digest_of(text)
        # Comparing versions takes microseconds; a lookup takes ten times as long.
        version = self._database.version()
        if version != self._version or len(self._known) > _MAX_KNOWN:
            self._version = version
            self._known.clear()
        if (token := self._known.get(digest)) is None:
            with self._database.reading() as connection:
                token = _find(connection, form[1], digest)
        if token is None or (token.expires is not None and token.expires <= time.time()):
            return None
        self._known[digest] = token
        return token

    def close(self) -> None:
        """Close the store."""
        self._database.close()


def _checked(scopes: Iterable[str]) -> frozenset[str]:
    """Return scopes, and check that they exist.

    Raises:
        InvalidInputError: A scope does not exist, or none was given.
    """
    wanted = frozenset(scopes)
    if not wanted or not wanted <= set(SCOPES):
        raise InvalidInputError(f"a token's scopes are one or more of {', '.join(SCOPES)}, not {sorted(wanted)}")
    return wanted


def _find(connection: sqlite3.Connection, number: str, digest: bytes) -> Token | None:
    row = connection.execute(_FIND, (number,)).fetchone()
    return _token(row[:-1]) if row is not None and _same(row[-1], digest) else None


def digest_of(text: str) -> bytes:
    """Return the stored digest of a token. It has 256 random bits, so a fast hash is enough."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _same(stored: bytes, given: bytes) -> bool:
    return hmac.compare_digest(stored, given)


def _token(row: sqlite3.Row | tuple[Any, ...]) -> Token:
    number, name, scopes, session, created, expires = row
    return Token(number, name, frozenset(scopes.split()), session, created, expires)
