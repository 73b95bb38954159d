"""The sessions of an MCP server's clients, by handle."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from cellblock.errors import BusyError, CellblockError, NotFoundError
from cellblock.fronts.mcp_server.client_limits import Work
from cellblock.fronts.mcp_server.places import Elsewhere, Here, Place
from cellblock.model.sessions import SessionRecord
from cellblock.operations.data import Data, read_answer
from cellblock.operations.sessions import Create, Destroy, Status
from cellblock.tools.approvals.rules import Rules

if TYPE_CHECKING:
    from cellblock.fronts.mcp_server.server_options import ServerOptions
    from cellblock.host import Host
    from cellblock.operations.base import AnswerT, Request

_HANDLE = re.compile(r"s-[0-9a-f]{32}")
_ONLY = "session"
_LEAST = 2.0  # seconds to find an open session, however little a call may wait

_ModelT = TypeVar("_ModelT")


@dataclass(slots=True)
class Asker:
    """A call that asks the person at the client. With later protocol versions, it continues in the client's next call.

    Attributes:
        session: The id of the session.
        id: An unguessable id.
        began: When the call began (`time.monotonic`).
        left: When the call returned its questions, or ended. The client may never return, so later calls may ask.
    """

    session: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.monotonic)
    left: float = math.inf


class Clients:
    """Sessions by their clients' handles, which are the sessions' names.

    Over stdio there is one client, and its session works in the workspace. Over HTTP there are many clients. Each gets an
    unguessable handle, and a folder of its own, which is the only folder that its code sees.

    Attributes:
        options: The server's options.
        rules: The rules that decide before people do, as loaded at the start of the server.
        place: The location of the sessions.
        asking: The calls that ask a person, by the id of the request.
        work: Work that takes longer than a call.
        forms: Forms that were returned to clients and not answered yet. Each answer counts once.
    """

    def __init__(self, options: ServerOptions, host: Host | None = None) -> None:
        """Set up without a session.

        Args:
            options: The server's options.
            host: The host of the sessions, which stays open; by default a new host, or the cluster.
        """
        self.options = options
        self.rules = Rules.load(options.rules) if options.rules is not None else Rules()
        self.place: Place = Elsewhere() if options.cluster or options.session_name else Here(options, host)
        self.asking: dict[str, Asker] = {}
        self.forms: OrderedDict[str, None] = OrderedDict()
        self.work = Work()
        self._only_name = options.session_name or (f"mcp-{secrets.token_hex(16)}" if options.cluster else _ONLY)
        self._opening: asyncio.Task[SessionRecord] | None = None

    async def begin(self) -> None:
        """Prepare for the first session.

        Raises:
            InvalidInputError: No session can be created with these options.
            DaemonError: The cluster cannot be reached.
        """
        await self.place.begin()
        if self.options.session_name:
            self._opening = asyncio.create_task(self._only())  # it may have to start the daemon

    async def session(self, handle: str, within: float | None = None) -> SessionRecord:
        """Return the session of a handle; over HTTP, create a session if there is no handle.

        Args:
            handle: The handle; empty over stdio.
            within: Limit in seconds for opening the session of stdio, which continues meanwhile.

        Raises:
            NotFoundError: The session does not exist.
            LaunchError: The session's kernel could not be started.
            BusyError: The session is not open within the limit.
        """
        if self.options.transport == "stdio":
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._only())
            try:
                async with asyncio.timeout(None if within is None else max(within, _LEAST)):
                    return await asyncio.shield(self._opening)
            except TimeoutError:
                raise BusyError("nothing was done, because the session is still starting: call again") from None
        return await self.known(handle) if handle else await self._new()

    async def known(self, handle: str) -> SessionRecord:
        """Return the session of a handle.

        Raises:
            NotFoundError: The session does not exist.
        """
        try:
            if not self.is_ours(handle):
                raise NotFoundError("it is not a session's handle")
            return await self.ask(Status(handle))
        except NotFoundError:
            raise NotFoundError(
                "no session has this handle (a session ends when it is not used for a day): call again without 'session', and "
                "use the handle in the answer from then on"
            ) from None

    def is_ours(self, name: str) -> bool:
        """Return whether this server has created, or could have created, the session with a name."""
        return name == self._only_name if self.options.transport == "stdio" else _HANDLE.fullmatch(name) is not None

    def folder(self, session: SessionRecord) -> Path:
        """Return the working directory of a session."""
        return Path(session.workspace)

    async def _only(self) -> SessionRecord:
        options = self.options.session(None if self.options.own_folders else self.options.workspace)
        if self.options.session_name:  # it may have other options than these, which is an error
            return await self.ask(Create(self._only_name, options))
        try:
            return await self.ask(Status(self._only_name))
        except NotFoundError:
            return await self.ask(Create(self._only_name, options, fresh=True))

    async def _new(self) -> SessionRecord:
        handle = f"s-{secrets.token_hex(16)}"
        folder = None
        if not self.options.own_folders:
            folder = self.options.workspace / handle
            await asyncio.to_thread(folder.mkdir, mode=0o700)
            await asyncio.to_thread(self.options.tools.mkdir, exist_ok=True)
        return await self.ask(Create(handle, self.options.session(folder), fresh=True))

    @overload
    async def ask(self, request: Request[Data[_ModelT]], body: bytes = b"") -> _ModelT: ...
    @overload
    async def ask(self, request: Request[list[Data[_ModelT]]], body: bytes = b"") -> list[_ModelT]: ...
    @overload
    async def ask(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT: ...
    async def ask(self, request: Request[Any], body: bytes = b"") -> Any:
        """Run an operation, and return its answer as `model` objects."""
        return read_answer(type(request), await self.place.link.call(request, body))

    async def close(self) -> None:
        """End the sessions that end with this server: the only one over stdio, and all sessions of this process."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self.work.close()
        if self.options.transport == "stdio" and self.options.cluster and not self.options.session_name:
            with suppress(CellblockError):  # it has ended, or the server has not begun
                await self.ask(Destroy(self._only_name))
        await self.place.close()
