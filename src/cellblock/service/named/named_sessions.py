"""The set of named sessions: makes, finds, adopts and ends them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock.common.threads import run_aside
from cellblock.errors import (
    CellblockError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StateError,
    StoreError,
    did_you_mean,
)
from cellblock.host import Host, Session
from cellblock.host.checkpoints.checkpoint import Beginning
from cellblock.host.survival.remains import SessionRemains
from cellblock.model import HistoryEntry
from cellblock.model.sessions import SessionRecord
from cellblock.service.named.approvals import PendingApprovals
from cellblock.service.named.arrival import Arrival, Source, forget_source, noted_sources
from cellblock.service.named.durable import ASIDE, remove_saves, sort_out
from cellblock.service.named.ended_executions import close_unfinished, outcome_left
from cellblock.service.named.executions import Execution
from cellblock.service.named.existing import Given, check_existing
from cellblock.service.named.json_options import Options, read_options, with_real_paths
from cellblock.service.named.labels import Label
from cellblock.service.named.limits import NamedLimits, check_room
from cellblock.service.named.moving import moving_error
from cellblock.service.named.overview import Overview
from cellblock.service.named.questions import ask_about, tell_that_nobody_answers
from cellblock.service.named.session import NamedSession, saves_of
from cellblock.service.named.submissions import Submissions
from cellblock.service.named.waiting import Arriving, WaitingSession
from cellblock.service.session.policy import requested_tier
from cellblock.service.session.running import RunningSession
from cellblock.service.store.named import NamedStore
from cellblock.tools.approvals.elicitation import Elicitation

if TYPE_CHECKING:
    from cellblock.common.environments import PackageSet
    from cellblock.host.environments.named_environments import NamedEnvironment

_log = logging.getLogger("cellblock.named")

_MAX_LOSSES = 20
_REMOVED = ".ended-"
"""The beginning of the name of a session's directory that is being removed."""

_RECENT = 5.0
"""Seconds after its last use in which servers of a session are looked for."""
_MOST_GIVEN_AWAY = 20_000
_MOST_ADOPTED = 1000
_NAME = re.compile(r"[\w.@:+-][\w.@:+ -]{0,127}")


class NamedSessions:
    """All named sessions of one process, for one event loop.

    Attributes:
        approvals: Pending approvals.
        executions: Submitted executions.
        limits: How much there may be.
        overview: The activity of all of them.
        store: The store of all that outlives this process.
    """

    def __init__(
        self,
        host: Host,
        store: NamedStore | None = None,
        limits: NamedLimits | None = None,
        fixed: Options | None = None,
        *,
        mark: str = "",
        workspaces: Path | None = None,
        notes_servers: bool = True,
    ) -> None:
        """Load the sessions of the store.

        They have no kernels: their next cells get fresh ones. If the host has a custodian, call `adopt` next.

        Args:
            host: Runs them, and stays open.
            store: The persistent store, which is closed with this; None for one in memory.
            limits: How much there may be.
            fixed: Options of all sessions that are made here, instead of the clients' options; None: clients choose.
            mark: The suffix of the sessions' ids, in a cluster: eight hexadecimal digits.
            workspaces: Where sessions get a directory of their own if their makers name none; it ends with them.
            notes_servers: Whether output names servers of the code, with `cellblock open`, which asks the daemon.

        Raises:
            StoreError: The store cannot be used.
        """
        self.store = store or NamedStore()
        self.limits = limits or NamedLimits()
        self.approvals = PendingApprovals(self.store.sessions)
        self._host = host
        self._fixed = fixed
        self._mark = mark
        self._workspaces = workspaces
        self._notes_servers = notes_servers
        self._sessions: dict[str, NamedSession] = {}
        self._names: dict[str, NamedSession] = {}
        self.overview = Overview(self._sessions, self.approvals)
        self.executions = Submissions(
            self.store, self.limits, self.approvals, self._sessions, self._live, self.overview.cell_ended
        )
        self._making: dict[str, asyncio.Task[NamedSession]] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._losses: list[str] = []
        self._waiting: dict[str, WaitingSession] = {}
        """Sessions of a killed process that cannot continue yet, by id."""
        self._arriving: dict[str, Arriving] = {}
        """Sessions that were arriving from other nodes when the last process was killed, by id."""
        self._given_away: dict[str, str] = {}
        """Tokens of the holds of sessions that have moved to other nodes, by name and by id: requests belong there."""
        self._adopted: dict[str, str] = {}
        """Names of the sessions that have adopted others, by the names and ids of these."""
        self._load_stored()
        self._take_up_saves()
        self.store.sessions.withdraw_requests()
        if not host.keeper.lasting:
            close_unfinished(self.store.journal)

    def _load_stored(self) -> None:
        """Load the sessions of the store. Those that were arriving from other nodes are taken up later."""
        sources = {} if self.store.directory is None else noted_sources(self.store.directory)
        for stored in self.store.sessions.all():
            named = NamedSession(self._host, stored.record, stored.options, store=self.store)
            named.lost = True
            named.begin_after(self.store.journal.last_run(stored.record.kernel_id))
            if (source := sources.pop(stored.record.kernel_id, None)) is not None:
                self._arriving[stored.record.kernel_id] = Arriving(named, source)
                continue
            self._add(named)
        for session in sources:  # this node was killed before it asked for them
            self._forget_source(session)

    def _take_up_saves(self) -> None:
        """Continue durable sessions that are missing in the journal: a damaged or lost file may have had them."""
        if (saves := saves_of(self.store)) is None:
            return
        try:
            for text in sort_out(saves, self._sessions):
                label = Label.read(text)
                if label.record is not None and label.session not in self._sessions:
                    self._add_unknown(label.record, label.options or {}).lost = True
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.note_lost(f"saves of durable sessions in {saves} cannot be read and were not removed: {error}")
        if (aside := saves.with_name(ASIDE)).is_dir() and (count := len(os.listdir(aside))):
            self.note_lost(f"{count} saves of unknown sessions are in {aside}: load them (session.load), or remove them")

    @property
    def kernels(self) -> int:
        """The number of sessions that have a kernel or are getting one."""
        return len(self._making) + sum(named.running is not None for named in self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions) + len(self._making)

    @property
    def warm(self) -> set[tuple[str, ...]]:
        """Sets of modules that sessions can have without importing them (`preload`)."""
        return self._host.warm

    async def create_environment(self, name: str, asked: PackageSet | None, *, upgrade: bool) -> NamedEnvironment:
        """Create an environment as `Host.create_environment` does, always in sandboxes: sessions set their own isolation."""
        isolate = requested_tier(True, None, self._host).name
        return await self._host.create_environment(name, asked, upgrade=upgrade, isolate=isolate)

    @property
    def names(self) -> set[str]:
        """The names that are in use: of sessions that exist, are being made, or are still ending."""
        return {*self._names, *self._making, *self._closing}

    async def adopt(self) -> None:
        """Take over the kernels of a killed process, and the code that runs in them. Call it before anything else."""
        journal = self.store.journal
        running = {record.session: record for record in journal.unfinished() if record.state == "running"}
        go_on: set[str] = set()

        async def one(remains: SessionRemains) -> None:
            label = Label.read(remains.label)
            if (arriving := self._arriving.get(label.session)) is not None:
                arriving.remains = remains, label
                return
            named = self._named_like(label, empty=remains.empty)
            if named is None:
                await self._host.discard(remains)
                return
            record = running.get(label.session)
            left = None if record is None else Execution.left(record, named.record.name, journal)
            waiting = WaitingSession(named, remains, label, left)
            try:
                goes_on = await self._take_up(waiting)
            except (CellblockError, OSError) as error:
                if named.remains is None:
                    self.note_lost(f"session {named.record.name!r} cannot be continued: {error}")
                    return
                _log.warning("session %r cannot continue yet: %s", named.record.name, error)
                waiting.note(error)
                self._waiting[label.session] = waiting
                goes_on = True  # perhaps
                if left is not None:
                    named.executions[left.record.id] = left
            if left is not None and goes_on:
                go_on.add(left.record.id)

        await asyncio.gather(*map(one, await self._host.adopt()))
        close_unfinished(journal, go_on)
        if self._workspaces is not None:
            await asyncio.to_thread(_remove_others, self._workspaces, {*self._sessions, *self._arriving})
        _log.info("%d sessions continue, and %d executions", self.kernels, len(go_on))

    async def _take_up(self, waiting: WaitingSession) -> bool:
        """Take over a session of a killed process; return whether its execution continues. Otherwise it gets its outcome.

        Raises:
            CellblockError, OSError: That is not possible. If its `left` is still there, it may be later.
        """
        named, left, journal = waiting.named, waiting.running, self.store.journal
        session = await named.adopt(waiting.remains, None if left is None else left.stdin.ask, waiting.label.since)
        self._join(named, session)
        at = session.succession.adopted_at
        if left is None:
            if session.cells.resumed and journal.find(session.cells.resumed) is None:  # otherwise, it had ended
                self.note_lost(f"session {named.record.name!r} runs code that is not in the journal")
        elif session.cells.resumed == left.record.id:
            self.executions.go_on(named, left, session)
            return True
        session.cells.forgo_resuming()
        if left is not None:
            begun = not at or at != journal.position(left.record.id)
            if not begun:
                journal.free_key(left.record.id)
            left.fail(*outcome_left(left.record, begun=begun))
            named.executions.pop(left.record.id, None)
        return False

    async def _take_up_later(self, waiting: WaitingSession) -> Session:
        """Take over a session of a killed process that could not continue before.

        Raises:
            BusyError: It still cannot.
            CellblockError, OSError: It is lost.
        """
        named = waiting.named
        async with waiting.turn:
            if named.current is None:
                try:
                    await self._take_up(waiting)
                except (CellblockError, OSError) as error:
                    if named.remains is None:
                        self._waiting.pop(named.record.kernel_id, None)
                        raise
                    waiting.note(error)
                    raise waiting.error from error
                _log.info("session %r continues", named.record.name)
            self._waiting.pop(named.record.kernel_id, None)
        return named.session

    def _named_like(self, label: Label, *, empty: bool) -> NamedSession | None:
        """Return the session that the custodian holds under a label; None if it must not continue.

        Args:
            label: The label.
            empty: Whether there is nothing to continue. If it is not stored, either, it was just being made.
        """
        named = self._sessions.get(label.session)
        if label.ended:
            if named is not None:  # it was ended before the process died, but that was not recorded
                self._remove(named)
            return None
        if named is not None or label.record is None or empty:
            return named
        return self._add_unknown(label.record, label.options or {})

    def _add_unknown(self, record: SessionRecord, options: Mapping[str, Any]) -> NamedSession:
        """Add a session that is not stored, although its kernel or its saves are there."""
        if record.name in self._names:
            record = dataclasses.replace(record, name=f"{record.name}-{record.kernel_id[:8]}")
        named = NamedSession(self._host, record, options, store=self.store)
        self.store.sessions.add(record, named.options)
        self._add(named)
        self.note_lost(f"session {record.name!r} was missing in the stored sessions and continues without its history")
        return named

    def note_lost(self, what: str) -> None:
        """Log something that was lost, and show it among the problems of the daemon's status."""
        _log.error("the stored state is not complete: %s", what)
        if what not in self._losses and len(self._losses) < _MAX_LOSSES:
            self._losses.append(what)

    def _add(self, named: NamedSession) -> None:
        self._sessions[named.record.kernel_id] = self._names[named.record.name] = named
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    # -- making and ending ---------------------------------------------------------------------------------------------

    async def create(
        self,
        name: str = "",
        options: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        *,
        fresh: bool = False,
        chosen: Collection[str] = (),
        lasting: bool = True,
        read: Options | None = None,
        start_from: Beginning | None = None,
        branch_of: str = "",
        branch_at: int = 0,
    ) -> NamedSession:
        """Make a session, or return the existing one of that name. Concurrent callers with one name get one session.

        Args:
            name: Its name; empty for a generated unique one.
            options: Its options, if it is made (`read_options`).
            tags: Labels, if it is made.
            fresh: Whether an existing one is an error.
            chosen: The names of the options that an existing one must have; it need not have the others.
            lasting: Whether the next process adopts it if this one is killed; otherwise it ends.
            read: Its parsed options, if available.
            start_from: The checkpoint that it begins with, if it is made.
            branch_of: The id of the session that the checkpoint is of.
            branch_at: The number of that session's last cell.

        Raises:
            ConflictError: There is one already.
            InvalidInputError: The name or an option is wrong, or the existing session has another one.
            BusyError: The limit of sessions or of their memory is reached.
            LaunchError: Its kernel could not be started.
            StoreError: It cannot be added to the store.
        """
        name = name or f"session-{secrets.token_hex(4)}"
        if not _NAME.fullmatch(name):
            raise InvalidInputError(f"a session's name has 1 to 128 letters, digits, spaces and ._@:+- , not {name[:200]!r}")
        if name in self._sessions:
            raise InvalidInputError(f"{name!r} is the id of session {self._sessions[name].record.name!r}: choose another name")
        if name in self._names or name in self._making:
            if fresh:
                raise ConflictError(f"session {name!r} exists already: use it, choose another name, or end it first")
            return await self._existing(name, chosen, options or {})
        check_room(self.limits, len(self), self._sessions.values())
        now, number = datetime.now(UTC).isoformat(), f"{secrets.token_hex(16 - len(self._mark) // 2)}{self._mark}"
        options = self._with_workspace(options or {}, number)
        if start_from is None:  # the options of a branch have real paths, in whose places its code could have put links
            options = with_real_paths(options)
        read = self._fixed or read or read_options(options, self._host)
        record = SessionRecord(number, name, now, now, tags=dict(tags or {}), kernel_type=read.named.kernel_type)
        record = dataclasses.replace(record, branch_of=branch_of, branch_at=branch_at)
        named = NamedSession(self._host, record, dict(options), read, start_from, lasting=lasting, store=self.store)
        if branch_of:
            self.store.networks.share(branch_of, number)
        self._making[name] = task = asyncio.create_task(self._make(named, lasting))
        task.add_done_callback(lambda _: self._making.pop(name, None))
        return await self._made(name)

    async def _existing(self, name: str, chosen: Collection[str], options: Mapping[str, Any]) -> NamedSession:
        """Return the session of a name, after checking that it has the chosen options."""
        found = self._names.get(name) or await self._made(name)
        if chosen and self._fixed is None:
            check_existing(name, Given(found.options, found.read, self._host), chosen, options)
        return found

    async def take_over(
        self, record: SessionRecord, options: Mapping[str, Any], arrival: Arrival, confirm: Callable[[], Awaitable[object]]
    ) -> NamedSession:
        """Continue a session that comes from another node of a cluster, with its id.

        Args:
            record: Its record there.
            options: Its options.
            arrival: The save that it continues from.
            confirm: Called when it could continue. If that raises, nothing of it is left here.

        Raises:
            ConflictError: There is one of that name or id.
            CellblockError: It cannot continue here.
        """
        name = record.name
        if name in self.names or record.kernel_id in self._sessions or record.kernel_id in self._arriving:
            raise ConflictError(f"session {name!r} exists there already")
        check_room(self.limits, len(self), self._sessions.values())
        options = self._with_workspace(options, record.kernel_id)
        named = NamedSession(self._host, record, dict(options), store=self.store, moved=arrival)
        self._making[name] = task = asyncio.create_task(self._make(named, lasting=True, arrival=arrival, confirm=confirm))
        task.add_done_callback(lambda _: self._making.pop(name, None))
        return await self._made(name)

    @property
    def arriving(self) -> dict[str, Source]:
        """The sources of sessions that were arriving when the last process was killed, by id. `settle` ends each."""
        return {session: one.source for session, one in self._arriving.items()}

    async def settle(self, session: str, *, given: bool) -> None:
        """Continue a session that was arriving when the last process was killed, or remove it.

        Args:
            session: Its id.
            given: Whether its source has given it away.
        """
        arriving = self._arriving.pop(session)
        named, remains = arriving.named, arriving.remains
        if given:
            self._add(named)
            try:
                if remains is not None:
                    await self._take_up(WaitingSession(named, *remains, None))
                    named.mark_arrived()
            except (CellblockError, OSError) as error:
                self.note_lost(f"session {named.record.name!r} cannot be continued: {error}")
        else:
            if remains is not None:
                await self._host.discard(remains[0])
            self.store.sessions.remove(session, ended=False)
            self.store.networks.leave(session)
            if (own := self.own_workspace(named)) is not None:
                _remove(own)
        self._forget_source(session)

    def _forget_source(self, session: str) -> None:
        if self.store.directory is not None:
            forget_source(self.store.directory, session)

    async def give_away(self, named: NamedSession) -> None:
        """End a session that continues elsewhere. What was saved of it at a URL stays."""
        while len(self._given_away) >= _MOST_GIVEN_AWAY:
            self._given_away.pop(next(iter(self._given_away)))
        self._given_away |= dict.fromkeys((named.record.name, named.record.kernel_id), named.held)
        await self._end(named, remove=False)

    async def end_adopted(self, branch: str, by: str) -> None:
        """End a session whose state another session continues.

        Args:
            branch: Its name or its id.
            by: The name or the id of the other one.
        """
        ending, other = self.known(branch), self.known(by)
        if ending is not None and other is not None:  # another client may have ended one of them meanwhile
            while len(self._adopted) >= _MOST_ADOPTED:
                self._adopted.pop(next(iter(self._adopted)))
            self._adopted |= dict.fromkeys((ending.record.name, ending.record.kernel_id), other.record.name)
        await self.destroy(branch)

    def gave_away(self, session: str, hold: str) -> bool:
        """Return whether a session has moved to another node that was held by this, here."""
        return self._given_away.get(session) == hold

    def _with_workspace(self, options: Mapping[str, Any], number: str) -> Mapping[str, Any]:
        """Return options with a directory of the session's own, if they name none and there is a place for such."""
        if self._workspaces is None or options.get("working_dir") or options.get("current_dir"):
            return options
        return {**options, "working_dir": str(self._workspaces / number)}

    def lend(self, name: str, running: RunningSession, options: Options) -> NamedSession:
        """Let clients use a session that is already running.

        Args:
            name: Its name for clients.
            running: The session and its services; they are closed if a client ends the session.
            options: Its options.
        """
        assert running.session is not None
        now = datetime.now(UTC).isoformat()
        named = NamedSession(self._host, SessionRecord(secrets.token_hex(16), name, now, now), {}, options)
        named.running = running
        self._join(named, running.session)
        self.store.sessions.add(named.record, {})
        self._add(named)
        return named

    async def _made(self, name: str) -> NamedSession:
        """Wait for a session that is being made. Cancelling one caller does not affect the others."""
        task = self._making[name]
        await asyncio.wait([task])
        if task.cancelled():
            raise StateError(f"session {name!r} was destroyed while it started")
        return task.result()

    async def _make(
        self,
        named: NamedSession,
        lasting: bool,
        arrival: Arrival | None = None,
        confirm: Callable[[], Awaitable[object]] | None = None,
    ) -> NamedSession:
        if (ending := self._closing.get(named.record.name)) is not None:
            await asyncio.wait([ending])
        begun = time.monotonic()
        try:
            if (own := self.own_workspace(named)) is not None:
                if arrival is not None:
                    _remove(own)  # a process that was killed while the session came here has left it
                own.mkdir(mode=0o700, exist_ok=True)
            session = await named.live()
            self.overview.started(time.monotonic() - begun)
            self._join(named, session)
            if arrival is not None and self.store.directory is not None:
                await asyncio.to_thread(arrival.source.note, self.store.directory, named.record.kernel_id)
            if lasting:
                self.store.sessions.add(named.record, named.options)
            if confirm is not None:
                await confirm()
                named.mark_arrived()
                self._forget_source(named.record.kernel_id)
        except BaseException:  # also a cancellation: no one else has the session
            await self._close(named)
            if arrival is not None:
                self.store.sessions.remove(named.record.kernel_id, ended=False)
                self._forget_source(named.record.kernel_id)
            self.store.networks.leave(named.record.kernel_id)
            raise
        self._add(named)
        return named

    def forget_removed_secrets(self) -> None:
        """Drop removed secrets from the options of their sessions, so that no later kernel gets them back."""
        for named in self._sessions.values():
            if named.current is not None and named.forget_secrets(named.current.removed_secrets):
                self.store.sessions.change_options(named.record.kernel_id, named.options)

    def own_workspace(self, named: NamedSession) -> Path | None:
        """Return the directory that a session has got for itself; None if it has none."""
        own = None if self._workspaces is None else self._workspaces / named.record.kernel_id
        return own if own is not None and named.options.get("working_dir") == str(own) else None

    async def _close(self, named: NamedSession, *, remove: bool = False) -> None:
        await named.close(remove=remove)
        waiting = self._waiting.pop(named.record.kernel_id, None)
        if waiting is not None and waiting.running is not None and not waiting.running.ended:
            waiting.running.fail(StateError("its session was ended while it ran"), "yes")
        if named.remains is not None:
            await self._host.discard(named.remains)
        if (own := self.own_workspace(named)) is not None:
            _remove(own)

    def _join(self, named: NamedSession, session: Session) -> None:
        """Complete the record of a started session, and connect it to its permissions."""
        named.record = named.shown_in(session)
        services = named.running.services if named.running is not None else None
        if services is not None:
            self.approvals.join(named.record, services.broker)
            services.on_elicitation = partial(self._ask_about, named)
            services.on_decision = partial(self.overview.decided, named)
            services.on_unrecorded = partial(self._note_unrecorded, named)
            services.on_result = named.note_result

    def _note_unrecorded(self, named: NamedSession, error: StoreError) -> None:
        self.note_lost(f"a call of session {named.record.name!r} failed: {error}")

    async def _ask_about(self, named: NamedSession, elicitation: Elicitation) -> Mapping[str, Any] | None:
        if named.approve == "auto" and not named.ask_questions:
            tell_that_nobody_answers(named, elicitation)
            return None
        return await ask_about(named, self.approvals, elicitation)

    async def live(self, session: str) -> Session:
        """Return the running session of a name or id, and start it if needed.

        Raises:
            NotFoundError, StateError, LaunchError, InvalidInputError: There is no such session; it has ended or cannot start.
        """
        return await self._live(self.find(session))

    async def _live(self, named: NamedSession) -> Session:
        if (session := named.current) is None:
            if (waiting := self._waiting.get(named.record.kernel_id)) is not None:
                session = await self._take_up_later(waiting)
            else:
                session = await named.live()
                self._join(named, session)
        await named.hold()
        return session

    def history(self, session: str, running: Session, count: int) -> list[HistoryEntry]:
        """Return the last cells of a session, oldest first; cells of earlier processes come from the journal."""
        named, entries = self.find(session), running.history(count)
        before = self.store.journal.history(named.record.kernel_id, named.since, count - len(entries))
        return [*before, *entries]

    def find(self, session: str) -> NamedSession:
        """Return a session by its name or id.

        Raises:
            NotFoundError: It does not exist.
            MovingError: It moves to another node of a cluster.
        """
        if (found := self.known(session)) is None:
            if session in self._given_away:
                raise moving_error(session)
            if session in self._adopted:
                other = self._adopted[session]
                raise NotFoundError(f"session {session!r} was adopted by {other!r}, which continues from its state")
            raise NotFoundError(f"there is no session {session!r}{did_you_mean(session, self._names)}")
        if found.held:
            raise moving_error(found.record.name)
        found.touch()
        return found

    def known(self, session: str) -> NamedSession | None:
        """Return a session by its name or id, without counting as a use, or None."""
        return self._names.get(session) or self._sessions.get(session)

    def all(self) -> list[NamedSession]:
        """Return all sessions, oldest first."""
        return [*self._sessions.values()]

    async def fresh_record(self, named: NamedSession) -> SessionRecord:
        """Return a session's record after checking its kernel: if that has ended, the status is ``dead``."""
        session, record = named.current, named.shown()
        ended = record.status == "idle" and session is not None and not await session.has_kernel()
        return dataclasses.replace(record, status="dead") if ended else record

    async def restart(self, session: str) -> SessionRecord:
        """Stop what runs in a session, and give it a fresh kernel.

        Raises:
            NotFoundError, StateError, LaunchError: There is no such session; it has ended; no kernel could be started.
        """
        named = self.find(session)
        named.lost = False
        self.approvals.forget(named.record.kernel_id)
        if (running := named.current) is None:
            await self._live(named)
            if named.durable is not None:
                await named.durable.forget()
            return named.shown()
        if named.durable is not None:
            await named.durable.forget()  # also a save that is being made
        await running.reset()
        if named.durable is not None:
            await named.durable.forget()  # one that was begun meanwhile
        if named.running is not None and named.running.services is not None:
            await named.running.services.reset()
        await named.run_startup_code(running)
        return named.shown()

    async def destroy(self, session: str) -> bool:
        """End a session; return whether there was one."""
        if (making := self._making.get(session)) is not None:
            making.cancel()
            await asyncio.wait([making])
            return True
        if (named := self.known(session)) is None:
            return False
        await self._end(named)
        return True

    async def wipe(self, *, durable: bool = True) -> list[str]:
        """End all sessions, or all that are not durable; return their ids."""
        for task in [*self._making.values()]:
            task.cancel()
        named = [one for one in self._sessions.values() if durable or not one.options.get("durable")]
        await asyncio.gather(*map(self._end, named))
        return [one.record.kernel_id for one in named]

    def _remove(self, named: NamedSession) -> None:
        del self._sessions[named.record.kernel_id], self._names[named.record.name]
        # The saves first: without its session, a save counts as one that was lost from the journal.
        if named.durable is not None:
            named.durable.remove()
        elif (saves := saves_of(self.store)) is not None and named.options.get("durable"):
            remove_saves(saves / named.record.kernel_id)
        self.store.networks.leave(named.record.kernel_id)
        self.store.sessions.remove(named.record.kernel_id, ended=named.record.kernel_id not in self._given_away)

    async def _end(self, named: NamedSession, *, remove: bool = True) -> None:
        """End a session in a separate task, so that cancelling the caller does not stop it."""
        name = named.record.name
        if named.record.kernel_id in self._sessions:
            named.mark_ended()
            self._remove(named)
            self.approvals.leave(named.record.kernel_id)
            self._closing[name] = task = asyncio.create_task(self._close(named, remove=remove))
            task.add_done_callback(lambda _: self._closing.pop(name, None))
        if (ending := self._closing.get(name)) is not None:
            await asyncio.wait([ending])

    async def close(self) -> None:
        """End all kernels, and close the store, which keeps the sessions. The host stays open."""
        await self.end_kernels()
        self.store.close()

    async def save_last(self) -> None:
        """Save changed states of durable sessions before their kernels end, unless that takes long."""
        await asyncio.gather(*(one.save_last() for one in [*self._sessions.values()]))

    async def save_durable(self) -> None:
        """Save changed states of durable sessions, before this process is ended.

        Raises:
            StateError: One cannot be saved.
        """
        await self.save_last()
        unsaved = [
            f"{named.record.name!r} ({named.durable.problem})"
            for named in self._sessions.values()
            if named.durable is not None and named.durable.problem
        ]
        if unsaved:
            raise StateError(f"the daemon does not end, because durable sessions cannot be saved now: {', '.join(unsaved)}")

    async def end_kernels(self) -> None:
        """End all kernels; running executions get an outcome. Can be called again."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self.overview.close()
        making: list[asyncio.Task[Any]] = [*self._making.values()]
        making += [waiting.retrying for waiting in self._waiting.values() if waiting.retrying is not None]
        for task in making:
            task.cancel()
        if making:
            await asyncio.wait(making)
        named = [*self._sessions.values()]
        await asyncio.gather(*(one.close() for one in named), *self._closing.values())
        await self.hear_out(named)
        for one in named:
            self.store.sessions.update(one.stamp())

    async def hear_out(self, named: Iterable[NamedSession] | None = None, *, timeout: float | None = None) -> None:
        """Wait until running executions have ended and their outcomes are recorded.

        Args:
            named: The sessions; None for all.
            timeout: Seconds to wait at most.
        """
        among = self._sessions.values() if named is None else named
        tasks = [execution.task for one in among for execution in one.executions.values() if execution.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def _watch(self) -> None:
        """End idle sessions after the time in their options, and store the last use of the others."""
        while True:
            await asyncio.sleep(1.0)
            await self._look_after_all()

    async def _look_after_all(self) -> None:
        """Check once. A function of its own, whose local variables do not keep ended sessions, which are large, alive."""
        now = time.monotonic()
        self.overview.sample()
        for named in [*self._sessions.values()]:
            if named.taken_by:
                self.note_lost(f"session {named.record.name!r} has ended here: it was taken over by {named.taken_by}")
                await self._end(named)
                continue
            named.save_if_due()
            recent = named.turn.locked() or now - named.used < _RECENT
            if self._notes_servers and named.current is not None and recent:
                named.servers.look(named.current)
            waiting = self._waiting.get(named.record.kernel_id)
            if waiting is not None and asyncio.get_running_loop().time() >= waiting.next and not waiting.turn.locked():
                waiting.retrying = asyncio.create_task(self._retry(waiting))
            if named.runs_programs or waiting is not None:
                named.used = now
            if named.executions or named.runs_programs:
                continue
            limit = named.idle_timeout
            if limit is not None and now - named.used > limit:
                _log.info("session %r is ended: it was idle for %g s", named.record.name, limit)
                await self._end(named)
            elif named.changed:
                named.changed = False
                self.store.sessions.update(named.stamp())

    async def _retry(self, waiting: WaitingSession) -> None:
        with suppress(CellblockError, OSError):  # it is noted
            await self._take_up_later(waiting)

    @property
    def busy(self) -> bool:
        """Whether code is running in any of them, or one is being ended."""
        return bool(self._closing) or any(named.turn.locked() for named in self._sessions.values())

    @property
    def memory(self) -> int:
        """Bytes that all of them use together. Any thread may ask."""
        return sum(named.memory for named in [*self._sessions.values()])

    def tied(self) -> list[str]:
        """Return why sessions cannot be continued by another process now without a loss, a sentence each."""
        asked = {pending.session for pending in self.approvals.waiting()}
        found = []
        for named in self._sessions.values():
            services = named.running.services if named.running is not None else None
            if named.record.kernel_id in asked:
                why = "it waits for a decision ('cellblock approvals')"
            elif services is not None and services.calls:
                why = "its code waits for a tool"
            elif named.runs_programs:
                why = "programs run beside its kernel"
            else:
                why = "" if named.current is None else named.current.tied
            if why:
                found.append(f"session {named.record.name!r}: {why}")
        return found

    def about(self) -> dict[str, Any]:
        """Return the number of sessions, their memory, and problems."""
        sessions = self._sessions.values()
        problems, failing = [*self._losses], self.store.writer.check()
        if self.store.writer.moved is not None:
            problems.append(f"the stored sessions were damaged; the file was moved to {self.store.writer.moved}")
        problems += [
            f"session {named.record.name!r} cannot be saved: {named.durable.problem}"
            for named in sessions
            if named.durable is not None and named.durable.problem
        ][:_MAX_LOSSES]
        problems += [str(waiting.error) for waiting in self._waiting.values()][:_MAX_LOSSES]
        if failing:
            problems.append(f"nothing can be stored, so no new code runs: {failing}")
        return {
            "sessions": len(self),
            "running": sum(named.turn.locked() for named in sessions),
            "waiting": sum(max(named.unfinished - 1, 0) for named in sessions),
            "memory": self.memory,
            "limits": dataclasses.asdict(self.limits),
            "problems": problems,
            "failing": failing,
        }


def _remove(workspace: Path) -> None:
    """Remove the directory of a session in a thread. From now on, its path is free: the session may return to this node."""
    ended = workspace.with_name(f"{_REMOVED}{workspace.name}-{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        os.replace(workspace, ended)
        run_aside(partial(shutil.rmtree, ended, ignore_errors=True), "cellblock-removal")


def _remove_others(workspaces: Path, sessions: Collection[str]) -> None:
    """Remove the directories of sessions that were ending, or arriving, when the last process was killed."""
    for path in workspaces.iterdir() if workspaces.is_dir() else ():
        if path.name.startswith(_REMOVED):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in sessions:
            _remove(path)
