"""The registry of named sessions, which are recorded before their first use."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cellblock.model.sessions import PendingApproval, Permission, SessionRecord
from cellblock.service.store.writer import Writer

SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    record TEXT NOT NULL,
    options TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    since REAL NOT NULL,
    state TEXT NOT NULL,
    request TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ended (
    id TEXT PRIMARY KEY,
    at REAL NOT NULL,
    record TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS networks (
    session TEXT PRIMARY KEY,
    network TEXT NOT NULL,
    state TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS permissions (
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    key TEXT NOT NULL,
    permission TEXT NOT NULL
) STRICT, WITHOUT ROWID
"""

_KEPT_REQUESTS = 86_400.0
"""Seconds for which an undecided request is shown as withdrawn."""

_MAX_REQUEST = 64 * 1024

MAX_ENDED = 5000
"""Ended sessions that are kept for searches."""

_TRIM_EVERY = 100
"""Sessions that end between two trims."""

# A session that ran nothing has nothing to find.
_END = (
    "INSERT OR REPLACE INTO ended (id, at, record) SELECT id, ?, record FROM sessions "
    "WHERE id = ? AND EXISTS (SELECT 1 FROM executions WHERE session = sessions.id)"
)
_TRIM_ENDED = "DELETE FROM ended WHERE at < ? OR id NOT IN (SELECT id FROM ended ORDER BY at DESC LIMIT ?)"


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session's public record, and its options as the creator gave them."""

    record: SessionRecord
    options: Mapping[str, Any]


class SessionRegistry:
    """All named sessions, their pending requests, and their permissions."""

    def __init__(self, writer: Writer, max_age: float) -> None:
        """Use a file that has the tables of `SCHEMA` and of the journal.

        Args:
            writer: Writes the file.
            max_age: Seconds for which ended sessions are kept.
        """
        self._writer = writer
        self._max_age = max_age
        self._until_trim = 0

    def add(self, record: SessionRecord, options: Mapping[str, Any]) -> None:
        """Add a session. It is written when this returns.

        Raises:
            StoreError: The store cannot be written.
        """
        values = (record.kernel_id, record.name, json.dumps(record.to_dict()), json.dumps(options))
        self._writer.write(("INSERT INTO sessions (id, name, record, options) VALUES (?, ?, ?, ?)", values))

    def update(self, record: SessionRecord) -> None:
        """Update a record with a delayed write."""
        self._writer.later("UPDATE sessions SET record = ? WHERE id = ?", (json.dumps(record.to_dict()), record.kernel_id))

    def change_options(self, session: str, options: Mapping[str, Any]) -> None:
        """Replace the options of a session. They are written when this returns.

        Raises:
            StoreError: The store cannot be written.
        """
        self._writer.write(("UPDATE sessions SET options = ? WHERE id = ?", (json.dumps(options), session)))

    def remove(self, session: str, *, ended: bool = True) -> None:
        """Remove a session. Its executions stay in the journal.

        The session stays removed if this process is killed afterwards. If nothing can be written, the removal waits.

        Args:
            session: The session's id.
            ended: Whether searches can find it; False if it continues elsewhere.
        """
        if ended:
            self._writer.later(_END, (time.time(), session))
            self._until_trim -= 1
            if self._until_trim < 0:
                self._until_trim = _TRIM_EVERY
                self._writer.later(_TRIM_ENDED, (time.time() - self._max_age, MAX_ENDED))
        self._writer.later("DELETE FROM sessions WHERE id = ?", (session,))
        self._writer.later("DELETE FROM requests WHERE session = ?", (session,))
        self._writer.later("DELETE FROM networks WHERE session = ?", (session,))
        self.forget_permissions(session)

    def all(self) -> list[StoredSession]:
        """Return all sessions, oldest first."""
        rows = self._writer.read("SELECT record, options FROM sessions")
        found = [StoredSession(SessionRecord.from_dict(json.loads(record)), json.loads(options)) for record, options in rows]
        return sorted(found, key=lambda one: one.record.created_at)

    def ended(self, count: int, after: str = "") -> list[tuple[float, SessionRecord]]:
        """Return some ended sessions with the times of their ends, in the order of their ids.

        Args:
            count: The maximum number of sessions.
            after: The id of the last session of the previous call.
        """
        query = "SELECT at, record FROM ended WHERE id > ? AND at >= ? ORDER BY id LIMIT ?"
        rows = self._writer.read(query, (after, time.time() - self._max_age, count))
        return [(at, SessionRecord.from_dict(json.loads(record))) for at, record in rows]

    def has_ended(self, session: str) -> bool:
        """Return whether an id belongs to an ended session that searches find."""
        query = "SELECT 1 FROM ended WHERE id = ? AND at >= ?"
        return bool(self._writer.read(query, (session, time.time() - self._max_age)))

    # -- requests ------------------------------------------------------------------------------------------------------

    def add_request(self, pending: PendingApproval) -> None:
        """Add a pending request with a delayed write."""
        text = json.dumps(pending.to_dict())
        if len(text) > _MAX_REQUEST:
            text = json.dumps(replace(pending, arguments={}, text=pending.text[:1000]).to_dict())
        values = (pending.id, pending.session, pending.since, "pending", text)
        insert = "INSERT OR REPLACE INTO requests (id, session, since, state, request) VALUES (?, ?, ?, ?, ?)"
        self._writer.later(insert, values, len(text))

    def end_request(self, number: str) -> None:
        """Remove a decided request with a delayed write: the decision is in the audit trail (`tools.registry.approvals`)."""
        self._writer.later("DELETE FROM requests WHERE id = ?", (number,))

    def withdraw_requests(self) -> None:
        """Mark requests of the last process as withdrawn, because their calls ended with it.

        Permissions and networks of sessions that ended with that process are removed.
        """
        for table in ("permissions", "networks"):
            self._writer.later(f"DELETE FROM {table} WHERE session NOT IN (SELECT id FROM sessions)", ())  # noqa: S608  # constants
        self._writer.later("UPDATE requests SET state = 'withdrawn' WHERE state = 'pending'", ())
        self._writer.later("DELETE FROM requests WHERE since < ?", (time.time() - _KEPT_REQUESTS,))

    def withdrawn_requests(self, session: str | None = None) -> list[PendingApproval]:
        """Return requests that were pending when the last process ended, oldest first; for one session or all."""
        rows = self._writer.read("SELECT session, request FROM requests WHERE state = 'withdrawn' ORDER BY since")
        found = (json.loads(request) for owner, request in rows if session in (None, owner))
        return [replace(PendingApproval.from_dict(data), state="withdrawn") for data in found]

    # -- networks ------------------------------------------------------------------------------------------------------

    def set_networks(self, sessions: Iterable[str], network: str, state: str) -> None:
        """Set the network of sessions. It is written when this returns.

        Args:
            sessions: The ids of the sessions, which share the network.
            network: The id of the network.
            state: Its changed state; empty while it is as the sessions' options say.

        Raises:
            StoreError: The store cannot be written.
        """
        insert = "INSERT OR REPLACE INTO networks (session, network, state) VALUES (?, ?, ?)"
        self._writer.write(*((insert, (session, network, state)) for session in sessions))

    def networks(self) -> list[tuple[str, str, str]]:
        """Return the sessions with a shared or changed network, each with the network's id and state."""
        return self._writer.read("SELECT session, network, state FROM networks")

    # -- permissions ---------------------------------------------------------------------------------------------------

    def allow(self, permission: Permission, key: tuple[str, ...]) -> None:
        """Add a permission. It is written when this returns.

        Args:
            permission: The permission in its public form.
            key: The broker's key for the permission.

        Raises:
            StoreError: The store cannot be written.
        """
        values = (permission.id, permission.session, json.dumps(key), json.dumps(permission.to_dict()))
        insert = "INSERT OR REPLACE INTO permissions (id, session, key, permission) VALUES (?, ?, ?, ?)"
        self._writer.write((insert, values))

    def revoke(self, permission: str) -> None:
        """Remove a permission. The removal is written when this returns.

        Raises:
            StoreError: The store cannot be written.
        """
        self._writer.write(("DELETE FROM permissions WHERE id = ?", (permission,)))

    def forget_permissions(self, session: str) -> None:
        """Remove all permissions of a session, as durably as `remove` does."""
        self._writer.later("DELETE FROM permissions WHERE session = ?", (session,))
        self._writer.make_safe()

    def permissions(self, session: str | None = None) -> list[tuple[Permission, tuple[str, ...]]]:
        """Return the permissions with their keys, oldest first; for one session or all."""
        rows = self._writer.read("SELECT session, key, permission FROM permissions")
        found = [
            (Permission.from_dict(json.loads(permission)), tuple(json.loads(key)))
            for owner, key, permission in rows
            if session in (None, owner)
        ]
        return sorted(found, key=lambda one: one[0].since)
