"""`SyncRayHosts`: sessions on the nodes of a Ray cluster, for plain synchronous Python."""

# Made from hosts.py by tests/unasync.py: do not edit it.

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from cellblock.cluster.cluster_options import ClusterOptions
from cellblock.cluster.routing import PATIENCE
from cellblock.errors import InvalidInputError, StateError
from cellblock.model.sessions import SessionRecord
from cellblock.operations.data import read_answer
from cellblock.operations.sessions import Create, List, Status

if TYPE_CHECKING:
    from cellblock.cluster.cluster_connection import ClusterConnection
    from cellblock.cluster.sync_session import SyncClusterSession


class SyncRayHosts:
    """Sessions on the nodes of a Ray cluster. Threads may share it.

    with SyncRayHosts(address="auto") as hosts:
        with hosts.session("task-17") as session:
            print((session.execute("6 * 7")).text)
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        patience: float = PATIENCE,
        options: ClusterOptions | None = None,
    ) -> None:
        """Configure without connecting.

        Args:
            address: The Ray cluster's address, as for `ray.init`. A program that is already connected to Ray stays
                connected there.
            patience: Seconds that a new session waits for room.
            options: The options of hosts, if the cluster has none yet.
        """
        self._address = address
        self._patience = patience
        self._options = options or ClusterOptions()
        self._made: ClusterConnection | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Connect to the cluster, and create a host on each of its nodes that has none.

        Raises:
            DaemonError: No Ray cluster exists at the address.
            UnsupportedError: The cluster has another version of cellblock, or Ray is not installed.
        """
        if self._made is None:
            from cellblock.cluster.cluster_connection import open_connection

            self._made = open_connection(self._address, self._patience, self._options)

    def close(self) -> None:
        """Close the connections. Sessions that were not closed continue."""
        link, self._made = self._made, None
        if link is not None:
            link.close()

    @property
    def link(self) -> ClusterConnection:
        """The connections to the nodes.

        Raises:
            StateError: It was not started, or was closed.
        """
        if self._made is None:
            raise StateError("SyncRayHosts is not started: use 'with SyncRayHosts(…) as hosts:'")
        return self._made

    def get_or_create(
        self,
        name: str = "",
        *,
        tags: Mapping[str, str] | None = None,
        memory: int = 0,
        patience: float | None = None,
        fresh: bool = False,
        **options: Any,
    ) -> SyncClusterSession:
        """Return the session with this name, and create it on the most suitable node if it does not exist.

        Args:
            name: The session's name; empty for a generated unique one.
            tags: Labels of a new session.
            memory: Bytes reserved for it; 0 for the cluster's default.
            patience: Seconds to wait for room; None for the default of these hosts.
            fresh: Whether an existing session is an error.
            options: Options of the session, which an existing session must have (docs/named-sessions.md). Paths are the
                node's. Without ``working_dir``, it gets a directory of its own, which ends with it.

        Raises:
            BusyError: There was no room; the message says what is full.
            LaunchError: Its kernel could not be started; the message names the node.
        """
        from cellblock.cluster.sync_session import SyncClusterSession

        given = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in options.items()}
        request = Create(name, given, dict(tags or {}), fresh, chosen=tuple(given))
        made = self.link.create(request, memory=memory, patience=patience)
        return SyncClusterSession(self.link, SessionRecord.from_dict(made))

    @contextmanager
    def session(self, name: str = "", **options: Any) -> Generator[SyncClusterSession, None, None]:
        """Create a session for an ``with`` block; it ends with the block.

        Args:
            name: The session's name, which must not be in use; empty for a generated unique one.
            options: As for `get_or_create`.

        Raises:
            ConflictError: A session with this name exists; `get_or_create` returns it.
        """
        session = self.get_or_create(name, fresh=True, **options)
        try:
            yield session
        finally:
            with suppress(LookupError):  # the session no longer exists
                session.close()

    def find(self, name: str) -> SyncClusterSession:
        """Return the session with a name or id.

        Raises:
            NotFoundError: The session does not exist.
            SessionLostError: The session ended with its node.
        """
        from cellblock.cluster.sync_session import SyncClusterSession

        if not name:
            raise InvalidInputError("name one session")
        return SyncClusterSession(self.link, SessionRecord.from_dict(self.link.call(Status(name))))

    def list_sessions(self) -> list[SessionRecord]:
        """Return the sessions of all nodes, oldest first."""
        return read_answer(List, self.link.call(List()))  # type: ignore[no-any-return]

    def status(self) -> dict[str, Any]:
        """Return nodes with their sessions and memory, the waiting queue, and problems."""
        return dict(self.link.link.director.ask("status"))
