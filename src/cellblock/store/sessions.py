"""The registry of named sessions: each one before it is used, and what was decided for it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cellblock.model.sessions import PendingApproval, Permission, SessionRecord
from cellblock.store.writer import Writer

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


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it is kept.

    Attributes:
        record: What everybody sees of it.
        options: Its options, as its maker has given them.
    """

    record: SessionRecord
    options: Mapping[str, Any]


class SessionRegistry:
    """All named sessions, what waits for a decision in them, and what was allowed for good."""

    def __init__(self, writer: Writer) -> None:
        """Use a file that has the tables of `SCHEMA`."""
        self._writer = writer

    def add(self, record: SessionRecord, options: Mapping[str, Any]) -> None:
        """Add a session. It is written when this returns.

        Raises:
            StoreError: It cannot be written.
        """
        values = (record.kernel_id, record.name, json.dumps(record.to_dict()), json.dumps(options))
        self._writer.write(("INSERT INTO sessions VALUES (?, ?, ?, ?)", values))

    def update(self, record: SessionRecord) -> None:
        """Note what has changed, soon."""
        self._writer.later("UPDATE sessions SET record = ? WHERE id = ?", (json.dumps(record.to_dict()), record.kernel_id))

    def remove(self, session: str) -> None:
        """Forget a session, soon. Its executions stay in the journal."""
        self._writer.later("DELETE FROM sessions WHERE id = ?", (session,))
        self._writer.later("DELETE FROM requests WHERE session = ?", (session,))
        self.forget_permissions(session)

    def all(self) -> list[StoredSession]:
        """Return all sessions, oldest first."""
        rows = self._writer.read("SELECT record, options FROM sessions")
        found = [StoredSession(SessionRecord.from_dict(json.loads(record)), json.loads(options)) for record, options in rows]
        return sorted(found, key=lambda one: one.record.created_at)

    # -- requests ------------------------------------------------------------------------------------------------------

    def add_request(self, pending: PendingApproval) -> None:
        """Note that a request waits, soon."""
        text = json.dumps(pending.to_dict())
        if len(text) > _MAX_REQUEST:
            text = json.dumps(replace(pending, arguments={}, text=pending.text[:1000]).to_dict())
        values = (pending.id, pending.session, pending.since, "pending", text)
        self._writer.later("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?)", values, len(text))

    def end_request(self, number: str) -> None:
        """Note that a request no longer waits: the decision is in the trail (`store.approvals`)."""
        self._writer.later("DELETE FROM requests WHERE id = ?", (number,))

    def withdraw_requests(self) -> None:
        """Note that what waited in the last process no longer does: its calls have ended with it.

        Permissions of sessions that were to end with that process end now.
        """
        self._writer.later("DELETE FROM permissions WHERE session NOT IN (SELECT id FROM sessions)", ())
        self._writer.later("UPDATE requests SET state = 'withdrawn' WHERE state = 'pending'", ())
        self._writer.later("DELETE FROM requests WHERE since < ?", (time.time() - _KEPT_REQUESTS,))

    def withdrawn_requests(self, session: str | None = None) -> list[PendingApproval]:
        """Return what waited when the last process ended, oldest first; of one session, or of all."""
        rows = self._writer.read("SELECT session, request FROM requests WHERE state = 'withdrawn' ORDER BY since")
        found = (json.loads(request) for owner, request in rows if session in (None, owner))
        return [replace(PendingApproval.from_dict(data), state="withdrawn") for data in found]

    # -- permissions ---------------------------------------------------------------------------------------------------

    def allow(self, permission: Permission, key: tuple[str, ...]) -> None:
        """Add what is allowed for good. It is written when this returns.

        Args:
            permission: What everybody sees of it.
            key: What the broker knows it by.

        Raises:
            StoreError: It cannot be written.
        """
        values = (permission.id, permission.session, json.dumps(key), json.dumps(permission.to_dict()))
        self._writer.write(("INSERT OR REPLACE INTO permissions VALUES (?, ?, ?, ?)", values))

    def revoke(self, permission: str) -> None:
        """Forget a permission. It is forgotten when this returns.

        Raises:
            StoreError: It cannot be written.
        """
        self._writer.write(("DELETE FROM permissions WHERE id = ?", (permission,)))

    def forget_permissions(self, session: str) -> None:
        """Forget all permissions of a session, soon."""
        self._writer.later("DELETE FROM permissions WHERE session = ?", (session,))

    def permissions(self, session: str | None = None) -> list[tuple[Permission, tuple[str, ...]]]:
        """Return what is allowed for good, oldest first; in one session, or in all."""
        rows = self._writer.read("SELECT session, key, permission FROM permissions")
        found = [
            (Permission.from_dict(json.loads(permission)), tuple(json.loads(key)))
            for owner, key, permission in rows
            if session in (None, owner)
        ]
        return sorted(found, key=lambda one: one[0].since)
