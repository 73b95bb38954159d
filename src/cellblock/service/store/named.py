"""The store of named sessions: sessions, executions, requests and permissions."""

from __future__ import annotations

from pathlib import Path

from cellblock.service.store import journal, session_registry
from cellblock.service.store.journal import Journal
from cellblock.service.store.networks import Networks
from cellblock.service.store.session_registry import SessionRegistry
from cellblock.service.store.writer import Writer

_FILE, _DIRECTORY = "named.db", "named"


class NamedStore:
    """The file ``named.db`` in a directory that one process at a time may use, and the directory ``named`` next to it.

    Attributes:
        directory: The parent directory; None for a store in memory.
        writer: Writes the file.
        journal: The executions.
        sessions: The sessions, with their requests and permissions.
        networks: The sessions' networks.
    """

    def __init__(self, directory: Path | None = None, max_age: float | None = None) -> None:
        """Open the store.

        Args:
            directory: The directory; None for a store in memory.
            max_age: Seconds for which ended executions and sessions are kept; None for `journal.MAX_AGE`.

        Raises:
            StoreError: The directory or the file cannot be used.
        """
        self.directory = directory
        kept = journal.MAX_AGE if max_age is None else max_age
        self.writer = Writer(directory, _FILE, f"{journal.SCHEMA};{session_registry.SCHEMA}")
        self.journal = Journal(self.writer, None if directory is None else directory / _DIRECTORY, kept)
        self.sessions = SessionRegistry(self.writer, kept)
        self.networks = Networks(self.sessions)

    def close(self) -> None:
        """Write pending changes, and close the store."""
        self.journal.close()
        self.writer.close()
