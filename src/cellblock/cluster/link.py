"""The sessions of a cluster, for asyncio, with the interface of the daemon's link. Each call goes to the session's node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from cellblock.cluster import routing
from cellblock.cluster.placing import Placing
from cellblock.cluster.reaching import EndedError, connect, context_of, has_ended
from cellblock.cluster.routing import Where
from cellblock.cluster.watching import watch_all
from cellblock.errors import (
    BusyError,
    ConflictError,
    DaemonError,
    InvalidInputError,
    LaunchError,
    MovingError,
    NotFoundError,
    NotPlacedError,
    NotRunError,
    OutcomeUnknownError,
    SessionLostError,
    UnsupportedError,
)
from cellblock.model.sessions import mark_of
from cellblock.operations.base import AnswerT, Request
from cellblock.operations.checkpoints import Adopt, Fork
from cellblock.operations.overview import Watch
from cellblock.operations.sessions import Create, Destroy, Status
from cellblock.service.daemon.link import DaemonLink
from cellblock.wire.packed import Packed

if TYPE_CHECKING:  # imports Ray, which every caller has already imported
    from cellblock.cluster.director_calls import DirectorCalls

_T = TypeVar("_T")
_MOST_KNOWN = 100_000
_TRIES = 5
_PAUSE = 3.0
"""Seconds between two checks whether hosts live, while there is no director."""

_SOON, _LATER = 0.02, 0.5
"""Seconds between two requests about a session that moves to another node: the first pause, and the longest."""

_HEARS = 10.0
"""Seconds within which a director has heard from a node again."""


class ClusterLink:
    """A link to the nodes of a cluster. It belongs to one event loop.

    Args:
        director: The director's calls.
        patience: Seconds that new sessions wait for room.
    """

    def __init__(self, director: DirectorCalls, patience: float = routing.PATIENCE) -> None:
        self.director = director
        self._patience = patience
        self._placing = Placing(director)
        self._tls = context_of(director.credentials)
        self._links: dict[str, DaemonLink] = {}
        self._known: dict[str, Where] = {}
        self._watching: dict[str, asyncio.Task[str]] = {}
        """Tasks that end when a host is lost, by mark."""
        self._closed = False

    # -- as `SessionLink` -------------------------------------------------------------------------------------------------

    async def call(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
        """Run an operation, and return its answer.

        Raises:
            SessionLostError: The session's node has ended.
            BusyError: There was no room for a new session.
        """
        answer: AnswerT = await self._call(request, body)
        return answer

    async def call_packed(self, request: Request[Any], body: bytes = b"") -> Packed:
        key = routing.key_of(request)
        packed: Packed = await self._wherever(request, key, lambda where: self._ask(where, request, body, packed=True))
        return packed

    async def _call(self, request: Request[Any], body: bytes) -> Any:
        if isinstance(request, Create):
            return await self.create(request)
        if isinstance(request, Fork):
            return await self._until_heard(lambda: self._fork(request))
        if key := routing.key_of(request):
            if isinstance(request, Adopt):
                routing.check_branch(request, await self._where_is(request.session), await self._where_is(request.branch))
            try:
                return await self._wherever(request, key, lambda where: self._ask(where, request, body))
            except NotFoundError:
                if isinstance(request, Destroy):
                    return False
                raise
        join = type(request).join
        if join is None:
            raise NotFoundError(f"the operation {request.op!r} names no session")
        wheres = await self._everywhere()
        asked = await asyncio.gather(*(self._ask(where, request, body) for where in wheres), return_exceptions=True)
        answers = [answer for answer in asked if not isinstance(answer, BaseException)]
        errors = [error for error in asked if isinstance(error, BaseException)]
        # A node may have just ended, or may lack what others have, such as an environment.
        if wrong := [error for error in errors if not answers or not isinstance(error, (DaemonError, NotFoundError))]:
            raise wrong[0]
        return join(answers)

    async def follow(self, request: Request[Any], body: bytes = b"") -> AsyncGenerator[Any, None]:
        if isinstance(request, Watch):
            async with aclosing(watch_all(self._everywhere, lambda where: self._parts(where, Watch()))) as changes:
                async for change in changes:
                    yield change
            return
        key = routing.key_of(request)
        deadline, pause = time.monotonic() + self._patience, _SOON
        heirs: list[Where] | None = None
        try:
            where = await self._locate(self._nearest(key))
        except SessionLostError:
            if not (heirs := await self._heirs(key)):
                raise
            where = heirs.pop(0)
        begun = False
        while True:
            try:
                async with aclosing(self._parts(where, request, body)) as parts:
                    async for part in parts:
                        begun = True
                        yield part
                return
            except MovingError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LATER)
                self._known.pop(key, None)
                heirs = heirs or await self._heirs(key)
                where = heirs.pop(0) if heirs else await self._locate(self._nearest(key))
            except NotFoundError:
                if heirs is None:
                    moved = await self._moved(self._nearest(key), where)
                    heirs = [*([] if moved is None else [moved]), *await self._heirs(key)]
                if begun or not heirs:
                    raise
                where = heirs.pop(0)
            except DaemonError as error:
                await self._raise_lost(self._nearest(key), where, error)
                raise type(error)(where.named(error)) from error

    async def _everywhere(self) -> list[Where]:
        return [Where(**one) for one in await self.director.asked("everywhere")]

    async def _parts(self, where: Where, request: Request[Any], body: bytes = b"") -> AsyncGenerator[Any, None]:
        """Yield a node's answers to a followed request, until the node is lost."""
        async with aclosing(self._link(where).follow(request, body)) as parts:
            with suppress(StopAsyncIteration):
                while True:
                    yield await self._while_there(where, request, anext(parts))

    async def close(self) -> None:
        self._closed = True
        await self._placing.close()
        watching = [*self._watching.values()]
        self._watching.clear()
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)
        for link in self._links.values():
            await link.close()

    # -- sessions ---------------------------------------------------------------------------------------------------------

    async def create(self, request: Create, *, memory: int = 0, patience: float | None = None) -> Any:
        """Create a session on a node with room, or return the existing session with its name.

        Args:
            request: The session to create.
            memory: Bytes that it needs; 0 for the cluster's default.
            patience: Seconds to wait for room; None for the default.

        Raises:
            BusyError: There was no room.
        """
        named = replace(request, name=request.name or routing.fresh_name())
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        return await self._until_heard(lambda: self._create(named, memory, deadline))

    async def _until_heard(self, make: Callable[[], Awaitable[_T]]) -> _T:
        """Create sessions where the director placed them. If a node refuses, retry until the director knows why."""
        deadline, pause = 0.0, _SOON
        while True:
            try:
                return await make()
            except NotPlacedError:
                deadline = deadline or time.monotonic() + _HEARS
                if time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LATER)

    async def _create(self, request: Create, memory: int, deadline: float) -> Any:
        name, tries = request.name, 0
        while True:
            left = round(max(deadline - time.monotonic(), 0.0), 1)
            placed = await self._placing.place(name, memory, routing.preloaded(request.options), left)
            if "full" in placed:
                raise BusyError(placed["full"], 5.0)
            where = Where(**placed)
            try:
                made = await self._ask(where, routing.for_a_node(request, name, where.grant))
            except BusyError as error:  # for example a durable session whose lease another node still has
                if time.monotonic() + error.retry_after > deadline:
                    raise
                await asyncio.sleep(error.retry_after)
            except DaemonError as error:
                tries += 1
                unknown = isinstance(error, OutcomeUnknownError) and not has_ended(error)
                if tries >= _TRIES or unknown or isinstance(error, NotPlacedError):
                    raise type(error)(where.named(error)) from error
                await self.director.asked("locate", where.mark, where.mark)  # the node's fate
            except (InvalidInputError, LaunchError, UnsupportedError) as error:
                raise type(error)(where.named(error)) from error
            else:
                self._remember(name, where)
                return made

    async def _fork(self, request: Fork) -> Any:
        where = await self._where_is(request.session)
        answer = await self.director.asked("reserve", [*request.names], where.mark, 0)
        if (error := routing.lost(answer, request.session)) is not None:
            raise error
        if "full" in answer:
            raise BusyError(answer["full"], 5.0)
        if "taken" in answer:
            raise ConflictError(f"session {answer['taken']!r} exists already: use it, choose another name, or end it first")
        granted = Where(**answer)
        made = await self._ask(granted, replace(request, grant=granted.grant))
        for name in request.names:
            self._remember(name, granted)
        return made

    async def _ask(self, where: Where, request: Request[Any], body: bytes = b"", *, packed: bool = False) -> Any:
        """Send a request to a host, and stop waiting when the host is lost, because a frozen host never answers."""
        if (watching := self._watch(where)).done():  # before anything is sent: the request was certainly not executed
            raise _lost(where, watching)
        link = self._link(where)
        return await self._while_there(where, request, (link.call_packed if packed else link.call)(request, body))

    async def _while_there(self, where: Where, request: Request[Any], work: Awaitable[_T]) -> _T:
        watching, task = self._watch(where), asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, watching], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            ended = _lost(where, watching)
            if request.repeatable:
                raise ended
            raise OutcomeUnknownError(f"{ended}; it is not known whether {request.op!r} was carried out") from ended
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    def _watch(self, where: Where) -> asyncio.Task[str]:
        if self._closed:
            raise DaemonError("the link to the cluster is closed: start RayHosts again")
        if (watching := self._watching.get(where.mark)) is None:
            watching = self._watching[where.mark] = asyncio.ensure_future(self._until_lost(where))
        return watching

    async def _until_lost(self, where: Where) -> str:
        while True:
            try:
                return str(await self.director.asked("until_lost", where.mark))
            except DaemonError:
                await asyncio.sleep(_PAUSE)  # without a director, the state is unknown

    async def _wherever(self, request: Request[Any], key: str, ask: Callable[[Where], Awaitable[_T]]) -> _T:
        """Send a request to a session's node. Wait while the session moves, and follow it to its new node."""
        deadline, pause = time.monotonic() + self._patience, _SOON
        while True:
            try:
                return await self._at(request, self._nearest(key), ask)
            except (MovingError, NotFoundError) as error:
                self._known.pop(key, None)
                for where in await self._heirs(key):
                    with suppress(MovingError, NotFoundError):
                        found = await ask(where)
                        self._remember(key, where)
                        return found
                if isinstance(error, NotFoundError) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LATER)

    async def _where_is(self, session: str) -> Where:
        """Return the node of a session, even after a move."""
        if mark_of(session) and session not in self._known:
            status = Status(session)
            await self._wherever(status, session, lambda where: self._ask(where, status))
        return await self._locate(self._nearest(session))

    def _nearest(self, key: str) -> str:
        """Return the key for the node of a session or an execution: an id that has moved, a mark, or a name."""
        return key if key in self._known else mark_of(key) or key

    async def _heirs(self, key: str) -> list[Where]:
        """Return the nodes to which sessions have moved that were created on the node of an id."""
        mark = mark_of(key)
        return [Where(**one) for one in await self.director.asked("heirs", mark)] if mark else []

    async def _at(self, request: Request[Any], key: str, ask: Callable[[Where], Awaitable[_T]]) -> _T:
        """Send a request to a session's node. If the session or the node was lost, find its new location."""
        where = await self._locate(key)
        try:
            return await ask(where)
        except NotFoundError:
            if (moved := await self._moved(key, where)) is None:
                raise
            return await ask(moved)
        except MovingError:
            raise
        except DaemonError as error:
            await self._raise_lost(key, where, error)
            if request.may_repeat or isinstance(error, NotRunError):
                return await ask(await self._locate(key))
            raise

    async def _moved(self, key: str, where: Where) -> Where | None:
        """Return the new location of a session; None if it has not moved, or exists nowhere."""
        self._known.pop(key, None)
        answer = await self.director.asked("locate", key)
        return None if "lost" in answer or answer["mark"] == where.mark else Where(**answer)

    async def _raise_lost(self, key: str, where: Where, error: DaemonError) -> None:
        """Raise if a session was lost with its node; return if it can still be reached."""
        self._known.pop(key, None)
        ended = has_ended(error)
        answer = await self.director.asked("locate", key, "" if ended else where.mark)
        if ended or "lost" in answer or answer["mark"] != where.mark:
            self._forget(where)
            why = answer.get("lost") or f"node {where.node} is lost: its host has ended"
            if isinstance(error, OutcomeUnknownError):
                raise OutcomeUnknownError(f"{why}; the code may have run in part", error.execution) from error
            raise SessionLostError(why) from error

    async def _locate(self, key: str) -> Where:
        if (known := self._known.get(key)) is not None:
            return known
        answer = await self.director.asked("locate", key)
        if (error := routing.lost(answer, key)) is not None:
            raise error
        where = Where(**answer)
        self._remember(key, where)
        return where

    def _remember(self, key: str, where: Where) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = self._known[where.mark] = where

    def _forget(self, where: Where) -> None:
        for key in [key for key, known in self._known.items() if known.mark == where.mark]:
            del self._known[key]

    def _link(self, where: Where) -> DaemonLink:
        if (found := self._links.get(where.mark)) is None:
            found = self._links[where.mark] = DaemonLink(connect=lambda: connect(where), tls=self._tls)
        return found


def _lost(where: Where, watching: asyncio.Task[str]) -> EndedError:
    return EndedError(f"node {where.node} is lost: {'the link was closed' if watching.cancelled() else watching.result()}")
