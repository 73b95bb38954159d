"""Sessions with names: made once, found by everybody, ended when nobody has used them for long."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cellblock.errors import CellblockError, ConflictError, InvalidInputError, NotFoundError, StateError
from cellblock.host import Host, Session
from cellblock.model.sessions import ExecutionRecord, SessionRecord, SessionStatus
from cellblock.named.approvals import PendingApprovals
from cellblock.named.executions import Execution
from cellblock.named.kernel_types import OWN, cell, start_kernel
from cellblock.named.options import Options, read_options
from cellblock.running import RunningSession

_log = logging.getLogger("cellblock.named")

_NAME = re.compile(r"[\w.@:+-][\w.@:+ -]{0,127}")
_KEPT = 200
"""Executions of a session that can still be asked for after they have ended."""


class NamedSession:
    """One session with a name.

    Attributes:
        record: What everybody sees of it, without its status.
        options: Its options.
        running: The session that runs, and its services.
        executions: Its last executions, oldest first, by id.
        turn: Held by the execution that runs.
        used: When it was last used (`time.monotonic`).
    """

    def __init__(self, record: SessionRecord, options: Options, running: RunningSession) -> None:
        self.record = record
        self.options = options
        self.running = running
        self.executions: dict[str, Execution] = {}
        self.turn = asyncio.Lock()
        self.used = time.monotonic()

    @property
    def session(self) -> Session:
        """The session.

        Raises:
            StateError: It has ended.
        """
        if self.running.session is None or self.running.closing:
            raise StateError(f"session {self.record.name!r} has ended")
        return self.running.session

    @property
    def status(self) -> SessionStatus:
        """What it does now."""
        if self.running.closing:
            return "dead"
        return "running" if self.turn.locked() else "idle"

    def shown(self) -> SessionRecord:
        """Return its record as of now."""
        return replace(self.record, status=self.status)

    def touch(self) -> None:
        """Take note that it is used."""
        self.used = time.monotonic()
        self.record = replace(self.record, last_used_at=datetime.now(UTC).isoformat())

    def count_attempt(self) -> None:
        """Take note of an attempt of `execute_with_retry`."""
        self.record = replace(self.record, attempt_count=self.record.attempt_count + 1)

    def keep(self, execution: Execution) -> None:
        """Keep an execution; the oldest that have ended are forgotten."""
        self.executions[execution.record.id] = execution
        if len(self.executions) > _KEPT:
            for old in list(self.executions.values())[: len(self.executions) - _KEPT]:
                if old.ended:
                    del self.executions[old.record.id]


class NamedSessions:
    """All named sessions of one process. Use it in one event loop.

    Attributes:
        approvals: What waits for a decision.
    """

    def __init__(self, host: Host) -> None:
        """Begin without a session.

        Args:
            host: Runs them, and stays open.
        """
        self.approvals = PendingApprovals()
        self._host = host
        self._sessions: dict[str, NamedSession] = {}
        self._names: dict[str, NamedSession] = {}
        self._making: dict[str, asyncio.Task[NamedSession]] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions) + len(self._making)

    # -- making and ending ---------------------------------------------------------------------------------------------

    async def create(
        self,
        name: str = "",
        options: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        *,
        fresh: bool = False,
    ) -> NamedSession:
        """Make a session, or return the one of that name. Callers who ask for one name at once get one session.

        Args:
            name: Its name; empty for one that nobody else has.
            options: Its options, if it is made (`read_options`).
            tags: Labels, likewise.
            fresh: Whether it is an error if there is one already.

        Raises:
            ConflictError: There is one already.
            InvalidInputError: The name or an option is wrong.
            LaunchError: Its kernel could not be started.
        """
        name = name or f"session-{secrets.token_hex(4)}"
        if not _NAME.fullmatch(name):
            raise InvalidInputError(f"a session's name has 1 to 128 letters, digits, spaces and ._@:+- , not {name[:200]!r}")
        found = self._by_name(name)
        if found is not None or name in self._making:
            if fresh:
                raise ConflictError(f"there is a session {name!r} already")
            return found if found is not None else await self._made(name)
        read = read_options(options or {}, self._host)
        self._making[name] = task = asyncio.create_task(self._make(name, read, dict(tags or {})))
        task.add_done_callback(lambda _: self._making.pop(name, None))
        return await self._made(name)

    async def _made(self, name: str) -> NamedSession:
        """Wait for a session that is being made; a caller that is cancelled does not keep the others from it."""
        task = self._making[name]
        await asyncio.wait([task])
        if task.cancelled():
            raise StateError(f"session {name!r} was destroyed while it started")
        return task.result()

    async def _make(self, name: str, options: Options, tags: Mapping[str, str]) -> NamedSession:
        if (ending := self._closing.get(name)) is not None:
            await asyncio.wait([ending])
        now, number = datetime.now(UTC).isoformat(), secrets.token_hex(16)
        running = RunningSession(self._host)
        try:
            await running.start(options.session, options.services, number, None, None)
            assert running.session is not None
            if (kernel_type := options.named.kernel_type) != OWN:
                await start_kernel(running.session, kernel_type)
        except BaseException:
            await running.close()
            raise
        record = SessionRecord(
            number,
            name,
            now,
            now,
            tags=tags,
            workspace=running.session.workspace,
            isolate=running.session.isolate,
            kernel_type=kernel_type,
        )
        made = self._sessions[number] = self._names[name] = NamedSession(record, options, running)
        if self._watching is None:
            self._watching = asyncio.create_task(self._end_idle())
        await self._run_startup_code(made)
        return made

    async def _run_startup_code(self, named: NamedSession) -> None:
        if code := named.options.named.startup_code:
            result = await named.session.execute(cell(code, "python", named.record.kernel_type))
            if not result.ok:
                _log.warning("the startup code of session %r failed: %s", named.record.name, result.text)

    def find(self, session: str) -> NamedSession:
        """Return a session by its name or id.

        Raises:
            NotFoundError: There is none.
        """
        found = self._by_name(session) or self._sessions.get(session)
        if found is None:
            raise NotFoundError(f"there is no session {session!r}")
        found.touch()
        return found

    def _by_name(self, name: str) -> NamedSession | None:
        return self._names.get(name)

    def records(self) -> list[SessionRecord]:
        """Return all sessions, oldest first."""
        return [named.shown() for named in self._sessions.values()]

    async def restart(self, session: str) -> SessionRecord:
        """Give a session a fresh kernel, without variables, and stop what runs.

        Raises:
            NotFoundError, StateError, LaunchError: There is none; it has ended; no kernel could be started.
        """
        named = self.find(session)
        await named.session.reset()
        if named.running.services is not None:
            await named.running.services.reset()
        await self._run_startup_code(named)
        return named.shown()

    async def destroy(self, session: str) -> bool:
        """End a session; return whether there was one."""
        if (making := self._making.get(session)) is not None:
            making.cancel()
            await asyncio.wait([making])
            return True
        named = self._by_name(session) or self._sessions.get(session)
        if named is None:
            return False
        await self._end(named)
        return True

    async def wipe(self) -> list[str]:
        """End all sessions; return their ids."""
        for task in [*self._making.values()]:
            task.cancel()
        named = [*self._sessions.values()]
        await asyncio.gather(*map(self._end, named))
        return [one.record.kernel_id for one in named]

    async def _end(self, named: NamedSession) -> None:
        """End a session in a task of its own: a caller that leaves does not stop it."""
        name = named.record.name
        if self._sessions.pop(named.record.kernel_id, None) is not None:
            del self._names[name]
            self._closing[name] = task = asyncio.create_task(named.running.close())
            task.add_done_callback(lambda _: self._closing.pop(name, None))
        if (ending := self._closing.get(name)) is not None:
            await asyncio.wait([ending])

    async def close(self) -> None:
        """End everything. The host stays open."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self.wipe()

    async def _end_idle(self) -> None:
        """End sessions that nobody has used for as long as their options say."""
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for named in [*self._sessions.values()]:
                limit = named.options.named.idle_timeout
                if limit is not None and not named.turn.locked() and now - named.used > limit:
                    _log.info("session %r is ended: not used for %g s", named.record.name, limit)
                    await self._end(named)

    # -- executions ----------------------------------------------------------------------------------------------------

    def submit(self, named: NamedSession, execution: Execution) -> Execution:
        """Have an execution run when it is its turn.

        Args:
            named: The session.
            execution: The execution; if another one was submitted with its key before, that one is returned.

        Raises:
            StateError: The session has ended.
        """
        if execution.record.key:
            for known in named.executions.values():
                if known.record.key == execution.record.key:
                    return known
        session = named.session
        named.keep(execution)
        execution.start(session, named.turn, self.approvals, auto=named.options.named.approve == "auto").add_done_callback(
            _retrieve
        )
        return execution

    async def interrupt(self, session: str, key: str = "") -> bool:
        """Stop what runs in a session; return whether something ran, after it has stopped.

        Args:
            session: The session.
            key: If it is given, only the execution that was submitted with it is stopped, or kept from running.

        Raises:
            NotFoundError, StateError: There is no such session; it has ended.
        """
        named = self.find(session)
        if not key:
            return await named.session.interrupt()
        found = [execution for execution in named.executions.values() if execution.record.key == key]
        return bool(found) and await found[0].cancel(named.session)

    def execution(self, number: str) -> tuple[NamedSession, Execution]:
        """Return an execution and its session by its id.

        Raises:
            NotFoundError: It is not known, or no longer.
        """
        for named in self._sessions.values():
            if (found := named.executions.get(number)) is not None:
                return named, found
        raise NotFoundError(f"there is no execution {number!r}, or no longer")

    def executions(self, session: str, count: int) -> list[ExecutionRecord]:
        """Return the last executions of a session, newest first."""
        return [execution.record for execution in reversed(self.find(session).executions.values())][:count]


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, CellblockError):
        _log.error("an execution failed", exc_info=error)
