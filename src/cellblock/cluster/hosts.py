"""`RayHosts`: sessions on the nodes of a Ray cluster, for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from cellblock.cluster.cluster_options import ClusterOptions
from cellblock.cluster.routing import PATIENCE
from cellblock.errors import InvalidInputError, StateError
from cellblock.model.sessions import SessionRecord
from cellblock.operations.data import read_answer
from cellblock.operations.sessions import Create, List, Status

if TYPE_CHECKING:
    from cellblock.cluster.link import ClusterLink
    from cellblock.cluster.session import ClusterSession


class RayHosts:
    """Sessions on the nodes of a Ray cluster. It belongs to one event loop.

    async with RayHosts(address="auto") as hosts:
        async with hosts.session("task-17") as session:
            print((await session.execute("6 * 7")).text)
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
        self._made: ClusterLink | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster, and create a host on each of its nodes that has none.

        Raises:
            DaemonError: No Ray cluster exists at the address.
            UnsupportedError: The cluster has another version of cellblock, or Ray is not installed.
        """
        if self._made is None:
            from cellblock.cluster.opening import open_link

            self._made = await asyncio.to_thread(open_link, self._address, self._patience, self._options)

    async def close(self) -> None:
        """Close the connections. Sessions that were not closed continue."""
        link, self._made = self._made, None
        if link is not None:
            await link.close()

    @property
    def link(self) -> ClusterLink:
        """The connections to the nodes.

        Raises:
            StateError: It was not started, or was closed.
        """
        if self._made is None:
            raise StateError("RayHosts is not started: use 'async with RayHosts(…) as hosts:', or 'with SyncRayHosts(…)'")
        return self._made

    async def get_or_create(
        self,
        /,
        name: str = "",
        *,
        tags: Mapping[str, str] | None = None,
        memory: int = 0,
        patience: float | None = None,
        fresh: bool = False,
        **options: Any,
    ) -> ClusterSession:
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
        from cellblock.cluster.session import ClusterSession

        given = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in options.items()}
        request = Create(name, given, dict(tags or {}), fresh, chosen=tuple(given))
        made = await self.link.create(request, memory=memory, patience=patience)
        return ClusterSession(self.link, SessionRecord.from_dict(made))

    @asynccontextmanager
    async def session(self, name: str = "", **options: Any) -> AsyncGenerator[ClusterSession, None]:
        """Create a session for an ``async with`` block; it ends with the block.

        Args:
            name: The session's name, which must not be in use; empty for a generated unique one.
            options: As for `get_or_create`.

        Raises:
            ConflictError: A session with this name exists; `get_or_create` returns it.
        """
        session = await self.get_or_create(name, fresh=True, **options)
        try:
            yield session
        finally:
            closing = asyncio.ensure_future(session.close())
            await asyncio.wait([closing])
            if not closing.cancelled() and (error := closing.exception()) is not None and not isinstance(error, LookupError):
                raise error  # a LookupError says that the session no longer exists

    async def find(self, name: str) -> ClusterSession:
        """Return the session with a name or id.

        Raises:
            NotFoundError: The session does not exist.
            SessionLostError: The session ended with its node.
        """
        from cellblock.cluster.session import ClusterSession

        if not name:
            raise InvalidInputError("name one session")
        return ClusterSession(self.link, SessionRecord.from_dict(await self.link.call(Status(name))))

    async def list_sessions(self) -> list[SessionRecord]:
        """Return the sessions of all nodes, oldest first."""
        return read_answer(List, await self.link.call(List()))  # type: ignore[no-any-return]

    async def status(self) -> dict[str, Any]:
        """Return nodes with their sessions and memory, the waiting queue, and problems."""
        return dict(await self.link.director.asked("status"))
