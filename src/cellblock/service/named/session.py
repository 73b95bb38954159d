"""One named session: its record, its options, and its running session if it has a kernel."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cellblock.common.secret import parse_secrets
from cellblock.common.tasks import despite_cancellation
from cellblock.errors import CellblockError, InvalidInputError, StateError
from cellblock.host import Host, Session
from cellblock.host.checkpoints.branches import is_branch
from cellblock.host.checkpoints.checkpoint import Beginning
from cellblock.host.kernels.cell import OnInput
from cellblock.host.survival.remains import SessionRemains
from cellblock.model import STATE_LOST, CodeExecutionResult, Recovery
from cellblock.model.decisions import Decision
from cellblock.model.sessions import SessionRecord, SessionStatus
from cellblock.service.named.arrival import Arrival
from cellblock.service.named.durable import WENT_BACK, Durable, told
from cellblock.service.named.executions import Execution
from cellblock.service.named.json_options import NamedOptions, Options, read_options
from cellblock.service.named.kernel_types import cell, has_run, kernel_of, start_kernel
from cellblock.service.named.labels import described, ended, label_of
from cellblock.service.named.lease import LeaseRecord
from cellblock.service.named.remote_saves import RemoteSaves
from cellblock.service.named.servers import ServerNotes
from cellblock.service.session.running import RunningSession
from cellblock.service.session.service_options import SessionOrigin
from cellblock.service.store.named import NamedStore

_log = logging.getLogger("cellblock.named")
_MAX_RESULTS = 500
_MOST_NAMED = 5  # lost cells whose code a result shows


class NamedSession:
    """One session with a name.

    Attributes:
        record: Its public record, without its status.
        options: Its options, as its maker has given them.
        running: The running session with its services; None until the session is first used in this process.
        executions: Executions by id, oldest first, that have not ended or are not completely in the journal.
        turn: The lock that the running execution holds, from before the session starts. Other requests, such as an undo, do
            not wait for it, so they come before the executions that do.
        used: When it was last used in this process, or when this process took it over (`time.monotonic`). The time before is
            only known by a clock that may have been set meanwhile.
        changed: Whether the record has changed since it was last stored.
        lost: Whether its kernel was lost and no result has said so yet.
        ended: Whether it has ended or is ending.
        remains: What a killed process has left of it, as long as it is not taken over: its kernel lives.
        durable: Saves it; None if it is not durable.
        ran: The id of the last execution that has run and ended; empty if none has.
        results: The beginnings of what the last tool calls returned, with the times of the decisions about them.
        last_line: The first line of the code that was submitted last.
        unasked: Set while no request about it is being answered (`answering`).
        held: The token of the hold while it moves to another node of a cluster; empty if it does not move.
        since: The id of the last execution that had ended when its past in the running session began; empty if none had. No
            time: clocks are set.
    """

    def __init__(
        self,
        host: Host,
        record: SessionRecord,
        options: Mapping[str, Any],
        read: Options | None = None,
        start_from: Beginning | None = None,
        *,
        lasting: bool = True,
        store: NamedStore | None = None,
        moved: Arrival | None = None,
    ) -> None:
        """Begin without a kernel.

        Args:
            host: Where it runs.
            record: Its public record.
            options: Its options, as its maker has given them.
            read: The parsed options, if available.
            start_from: The checkpoint that its first kernel is made from.
            lasting: Whether the next process adopts it if this one is killed.
            store: Stores its executions. If it is durable, its saves are in the same directory.
            moved: The save that it continues from, if it comes from another node of a cluster.
        """
        self.record = record
        self.options = options
        self.running: RunningSession | None = None
        self.executions: dict[str, Execution] = {}
        self.turn = asyncio.Lock()
        self.used = self._begun = time.monotonic()
        self.changed = False
        self.lost = False
        self._loss: Recovery = "restarted"
        """The recovery that `take_loss` reports if its kernel was lost."""
        self.durable: Durable | None = None
        self._left: LeaseRecord | None = None
        """The last record of another daemon's lease on it, if the session continues here."""
        self.ran = ""
        self._store = store
        self.last_line = ""
        self.results: deque[tuple[float, str]] = deque(maxlen=_MAX_RESULTS)
        self.since = ""
        self._prepared = ""
        self._host = host
        self._read = read
        self._starting: asyncio.Task[Session] | None = None
        self.ended = False
        self.remains: SessionRemains | None = None
        self._on_input: OnInput | None = None
        self._last_ended = ""
        self._start_from = start_from
        self._lasting = lasting
        self._moved = moved
        self._asked = 0
        self.unasked = asyncio.Event()
        self.unasked.set()
        self.held = ""
        self.servers = ServerNotes(record.name or record.kernel_id, record.kernel_type)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While this is entered, a request about it is being answered: it does not move."""
        self._asked += 1
        self.unasked.clear()
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked:
                self.unasked.set()

    @property
    def read(self) -> Options:
        """Its options.

        Raises:
            InvalidInputError: One is wrong; a file that they name may be gone.
        """
        if self._read is None:
            try:
                self._read = read_options(self.options, self._host)
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"session {self.record.name!r} was created earlier, and its options are invalid now: {error}. Correct "
                    "this, then try again; if another version of cellblock created it, use that version"
                ) from error
        return self._read

    def forget_secrets(self, names: Collection[str]) -> bool:
        """Drop secrets from its options. Return whether there were any."""
        given = parse_secrets(self.options.get("secrets", ()))
        if not given.keys() & {*names}:
            return False
        left = {name: secret for name, secret in given.items() if name not in names}
        self.options = {**self.options, "secrets": left}
        if self._read is not None:
            self._read = replace(self._read, session=replace(self._read.session, secrets=left))
        return True

    @property
    def current(self) -> Session | None:
        """The running session; None if it has no kernel in this process yet, or has ended."""
        running = self.running
        return None if running is None or running.closing or not running.started else running.session

    @property
    def session(self) -> Session:
        """The session that runs.

        Raises:
            StateError: It has no kernel in this process yet, or has ended.
        """
        if (session := self.current) is None:
            raise StateError(f"session {self.record.name!r} has ended")
        return session

    @property
    def runs_programs(self) -> bool:
        """Whether programs run beside its kernel."""
        return (session := self.current) is not None and any(one.running for one in session.processes())

    @property
    def position(self) -> str:
        """The position where the next execution begins (`Session.position`), if it can begin at once; else empty."""
        free = not self.unfinished and not self.turn.locked() and self.current is not None
        return self.session.position if free else ""

    @property
    def unfinished(self) -> int:
        """The number of executions that have not ended."""
        return sum(not execution.ended for execution in self.executions.values())

    async def live(self) -> Session:
        """Return the running session, and start it if needed. Concurrent callers wait for the same start.

        Raises:
            StateError: It has ended.
            LaunchError, InvalidInputError: It cannot be started; the next call tries again.
        """
        if (session := self.current) is not None:
            return session
        if self.ended:
            raise StateError(f"session {self.record.name!r} has ended")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._forget)
        starting = self._starting
        await asyncio.wait([starting])
        if starting.cancelled():
            raise StateError(f"session {self.record.name!r} was ended while it started")
        return starting.result()

    def _forget(self, task: asyncio.Task[Session]) -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # mark as retrieved: there may be no waiter, and the next one tries again

    def begin_after(self, execution: str) -> None:
        """Record the last execution of earlier processes, when it is loaded: their cells are in the journal alone."""
        self.since = self._last_ended = execution

    def make_durable(self) -> None:
        """Start to save it between its cells, if it is durable.

        Raises:
            InvalidInputError: It is durable, but its store is in memory only; or an option is wrong.
        """
        if self.durable is not None or not self._lasting or not self.options.get("durable"):
            return
        every = self.read.named.saved_every
        directory = None if self._store is None else saves_of(self._store)
        if every is None or self._store is None:
            return
        if directory is None:
            raise InvalidInputError("durable sessions need the daemon: this program keeps its sessions in its own memory")
        self.ran = self._store.journal.last_run(self.record.kernel_id)
        self.durable = Durable(
            directory / self.record.kernel_id,
            every,
            self._last_run,
            self._label,
            self._remote(),
        )

    def _label(self) -> str:
        return described(self.record, self.options, self.since)

    def note_begun(self, execution: str, code: str) -> asyncio.Task[None] | None:
        """Start to write down that a cell has begun, if the session is durable; the result waits for that."""
        return None if self.durable is None else asyncio.create_task(self.durable.note_begun(execution, code))

    def _remote(self) -> RemoteSaves | None:
        """Return the saves at the URL of its options, if there is one."""
        url = self.read.named.durable
        if not isinstance(url, str):
            return None
        return RemoteSaves(url, self.record.name, self.record.kernel_id, self._run_after)

    def _run_after(self, last: str, *, running: bool = True) -> tuple[list[str], int]:
        """Return what has run since a save: the code of the first cells, and how many; a restore counts as one.

        Args:
            last: The id of the execution after which it was made; empty if it was made before the first.
            running: Whether a cell counts that is running now.
        """
        assert self._store is not None
        # A power failure, or another program, may have taken the last cells from the journal.
        own = None if self.durable is None else self.durable.run_after(last, _MOST_NAMED)
        codes, lost = own or self._store.journal.run_after(self.record.kernel_id, last, _MOST_NAMED, running=running)
        if self.durable is None or not self.durable.left:
            return codes, lost
        return [WENT_BACK, *codes], lost + 1

    @asynccontextmanager
    async def going_back(self) -> AsyncIterator[None]:
        """While this is entered, it may go to another state (undo, restore, adopt, load): saves follow, however it ends."""
        session = self.current
        before = None if session is None else session.saving.last_state.number
        try:
            yield
        finally:
            if self.durable is not None and session is not None and session.saving.last_state.number != before:
                # The client may have left: then this is cancelled, and the session has restored the state anyway.
                await despite_cancellation(asyncio.create_task(self.durable.went_back(session)))

    def note_loaded(self) -> None:
        """Handle that its kernel has the variables of a saved session: the startup code does not run in it."""
        self._prepared = kernel_of(self.session.position)

    async def hold(self) -> None:
        """Make sure that no other daemon continues it, if it is saved at a URL. Call it before code runs in it.

        Raises:
            ConflictError: Another one does.
            StoreError: That cannot be known now.
        """
        if self.durable is not None and self.durable.remote is not None and self.current is not None:
            await self.durable.remote.hold()

    @property
    def taken_by(self) -> str:
        """The machine whose daemon has taken it over; empty if none has."""
        return "" if self.durable is None or self.durable.remote is None else self.durable.remote.taken_by

    async def _take_name(self) -> None:
        """Take the name at the URL of the saves, and what another daemon has saved of the session.

        Raises:
            BusyError, ConflictError: Another one has the name.
            StoreError: The store cannot be used.
        """
        if self.durable is None or self.durable.remote is None:
            return
        left = await self.durable.remote.take(self.durable.directory)
        if left is not None:
            self._left, self.lost = left, True

    def _last_run(self, running: str) -> str:
        """Return the id of the last execution that has run, except the running one; empty if none has."""
        begun = (one.record.id for one in self.executions.values() if one.begun)
        return max((self.ran, *(one for one in begun if one != running)))

    async def _start(self) -> Session:
        self.make_durable()
        # If a kernel lives here, or the session moves here, `hold` takes the name before code runs.
        if self.remains is None and self._moved is None:
            await self._take_name()
        running = self.running = RunningSession(self._host)
        label = functools.partial(label_of, self.record, self.options, lasting=self._lasting and self._moved is None)
        try:
            number, remains, self.remains = self.record.kernel_id, self.remains, None
            start_from, self._start_from = self._start_from, None
            origin = SessionOrigin(
                name=self.record.name,
                label=label(self.since),
                remains=remains,
                start_from=start_from,
                network=None if self._store is None else self._store.networks.joining(number),
                loads=self._moved is not None or self._save_to_load is not None,
            )
            given = self.read.session, self.read.services, number, None, None
            await running.start(*given, origin=origin, on_input=self._on_input)
            assert running.session is not None
            await start_kernel(running.session, self.record.kernel_type)
        except BaseException:
            self.running = None
            await running.close()
            if running.session is None or running.session.untouched:
                self.remains = remains  # for the next attempt: the kernel lives on
            raise
        if remains is not None and not running.session.succession.recalled and self._last_ended != self.since:
            self.since = self._last_ended
            running.session.succession.relabel(label(self.since))
        if running.session.succession.adopted:
            at = running.session.succession.adopted_at
            # In a fresh kernel that has run nothing, the process before was killed before the startup code began.
            self._prepared = kernel_of(at) if has_run(at) or not running.session.succession.afresh else ""
        elif not running.session.succession.afresh and remains is not None:
            self._prepared = kernel_of(running.session.position)
        elif self._moved is not None:
            await self._moved.load(running.session)
            self._prepared, self._moved = kernel_of(running.session.position), None
        elif start_from is None and not await self._go_on_from_save(running.session):
            await self.run_startup_code(running.session)
            if self.lost and self._left is not None:
                running.session.cells.note(f"[cellblock] The session ran on {self._left.host} before. {STATE_LOST}")
            elif self.lost:
                running.session.cells.note(f"[cellblock] The session's kernel ended with the daemon. {STATE_LOST}")
                if self.options.get("workspace"):
                    lost = "Its clone was removed, with all that was not fetched. It works in a new one."
                    running.session.cells.note(f"[cellblock] {lost}")
                if is_branch(self.record.workspace):
                    here = running.session.workspace
                    running.session.cells.note(
                        f"[cellblock] Its files were a branch's copy, which was removed. It works in {here}."
                    )
        return running.session

    @property
    def _save_to_load(self) -> Path | None:
        """The save that a session continues from, if its kernel was lost."""
        return self.durable.last if self.durable is not None and self.lost else None

    async def _go_on_from_save(self, session: Session) -> bool:
        """Continue a session whose kernel was lost from its last save; return whether that worked. A result says so."""
        assert self._store is not None or self.durable is None
        if self.durable is None or (save := self._save_to_load) is None:
            return False
        at = _local_time(save.stat().st_mtime)
        # The copied files of a branch were removed, so it works in the workspace of its origin, or in a clone of its own.
        whole = bool(self.options.get("workspace")) or not is_branch(self.record.workspace)
        host = known_until = ""
        if (left := self._left) is not None:
            codes, lost, host = [*left.ran], left.lost, left.host
            known_until = "" if left.released else _local_time(left.at / 1000)
        else:
            codes, lost = self._run_after(Durable.execution_of(save), running=False)
        self._loss = "restored_earlier" if lost or known_until else "restored"
        tell = functools.partial(told, at, codes, lost, host=host, known_until=known_until, clone=session.clone_is_new)
        await self.durable.note_loss(self._loss, tell([], None))
        try:
            changed = await self.durable.load(session, save, workspace=whole)
        except CellblockError as error:
            self.durable.reported()
            self._loss = "restarted"
            session.cells.note(f"[cellblock] The save of the session of {at} cannot be loaded: {error}")
            return False
        self._prepared = kernel_of(session.position)
        self.since = ""  # its history is in the save
        lines = tell(changed, session.loaded)
        await self.durable.note_loss(self._loss, lines)
        for line in lines:
            session.cells.note(f"[cellblock] {line}")
        self._left = None
        return True

    def mark_arrived(self) -> None:
        """Make sure that a later process can adopt it, also without the store: its source has given it away."""
        self.session.succession.relabel(label_of(self.record, self.options, self.since, lasting=True))

    def mark_ended(self) -> None:
        """Make sure that no later process adopts it, even if this one is killed before it has ended."""
        if self.running is not None and self.running.session is not None:
            self.running.session.succession.relabel(ended(self.record.kernel_id))

    async def adopt(self, remains: SessionRemains, on_input: OnInput | None, since: str) -> Session:
        """Take over the kernel that a killed process has left. If the kernel is lost, the session gets a fresh one.

        Args:
            remains: The remains of the session.
            on_input: Answers `input()` of the code that is still running.
            since: As that process had it.

        Raises:
            CellblockError: It could not be started.
        """
        self.remains, self._on_input, self.since = remains, on_input, since
        try:
            session = await self.live()
        finally:
            self._on_input = None
        self.lost = not session.succession.adopted and session.succession.afresh
        if self.durable is not None and (unreported := self.durable.unreported()) is not None:
            self.lost, (self._loss, lines) = True, unreported
            for line in lines:
                session.cells.note(f"[cellblock] {line}")
        return session

    async def run_startup_code(self, session: Session) -> CodeExecutionResult | None:
        """Run the startup code of its options; return the result, if there is such code."""
        code = self.read.named.startup_code
        if not code:
            return None
        result = await session.execute(
            cell(code, "python", self.record.kernel_type),
            on_begin=self._startup_code_begins,
        )
        if not result.ok:
            _log.warning("the startup code of session %r failed: %s", self.record.name, result.text)
        return result

    def _startup_code_begins(self, position: str) -> None:
        self._prepared = kernel_of(position)

    async def prepare(self, session: Session) -> None:
        """Prepare a fresh kernel: if the last one has died, load the last save of a durable session, or run the startup code.

        The next result says so.
        """
        if not session.succession.afresh or kernel_of(session.position) == self._prepared:
            return
        if not self.read.named.startup_code and self.durable is None:
            return
        await session.wait_for_kernel()
        again = bool(self._prepared)
        if (kernel := kernel_of(session.position)) in ("", self._prepared):
            return
        # Not after an undo of all cells, a restart or a load: these have given it another kernel on purpose.
        lost = session.succession.all_lost and self.durable is not None and not self.durable.left
        if lost and self.durable is not None and self.durable.last is not None:
            self.lost = True
            if await self._go_on_from_save(session):
                return
            self.lost = False
        self._prepared = kernel
        if (result := await self.run_startup_code(session)) is None or not again:
            return
        self.lost = True
        for line in result.stderr.splitlines():
            if line.startswith("[cellblock] The kernel died"):
                session.cells.note(line)
        outcome = "was run again" if result.ok else f"was run again, and failed: {result.text}"
        session.cells.note(f"[cellblock] The kernel is fresh, and the startup code {outcome}")

    @property
    def status(self) -> SessionStatus:
        """Its current status."""
        if self.turn.locked():
            return "running"
        return "dead" if self.current is None and self.remains is None else "idle"

    def shown(self) -> SessionRecord:
        """Return its current record."""
        return replace(self.stamp(), status=self.status)

    def count_attempt(self) -> None:
        """Count an attempt of `execute_with_retry`."""
        self.record = replace(self.record, attempt_count=self.record.attempt_count + 1)
        self.changed = True

    def shown_in(self, session: Session) -> SessionRecord:
        """Return a record with the facts that are known since the session has started."""
        return replace(self.record, workspace=session.workspace, isolate=session.isolate)

    def take_loss(self) -> Recovery | None:
        """Return what it continues from, if its kernel was lost and no result has said so yet, and mark that as reported."""
        lost, self.lost = self.lost, False
        loss, self._loss = self._loss, "restarted"
        return loss if lost else None

    def note_result(self, decision: Decision, text: str) -> None:
        """Record the beginning of the result of a tool call, with the decision about the call."""
        self.results.append((decision.at, text))

    def reported(self) -> None:
        """Handle that a result was recorded: a loss that it has reported is known."""
        if self.durable is not None and not self.lost:
            self.durable.reported()

    @property
    def approve(self) -> str:
        """Who decides about its tool calls (`NamedOptions`)."""
        return str(self.options.get("approve", "ask"))

    @property
    def ask_questions(self) -> bool:
        """Whether questions of MCP servers wait for an answer although everything is allowed."""
        return bool(self.options.get("ask_questions", False))

    @property
    def idle_timeout(self) -> float | None:
        """Seconds without use after which it ends; None: never."""
        given: float | None
        if self._read is not None:
            given = self._read.named.idle_timeout
        else:
            given = self.options.get("idle_timeout", NamedOptions().idle_timeout)
        if self.options.get("workspace") and "idle_timeout" not in self.options:
            return None  # a clone ends with its session, and its commits may not have been fetched
        return given or None

    @property
    def memory(self) -> int:
        """Bytes that its processes use, as last measured; 0 if that is not measured, as without a sandbox."""
        return 0 if self.current is None else self.current.memory

    def touch(self) -> None:
        """Record that it is used."""
        self.used = time.monotonic()
        self.changed = True

    def stamp(self) -> SessionRecord:
        """Return its record with the time of its last use."""
        if self.used == self._begun:
            return self.record
        at = datetime.fromtimestamp(time.time() - (time.monotonic() - self.used), UTC)
        self.record = replace(self.record, last_used_at=at.isoformat())
        return self.record

    def save_if_due(self) -> None:
        """Start to save it, if it is durable and a save is due. Not while it starts, as it may be loading."""
        if self.durable is not None and self._starting is None and self.current is not None:
            self.durable.look(self.current)

    async def save_last(self) -> None:
        """Save a changed state, if it is durable, before its kernel ends."""
        if self.durable is not None and self._starting is None and self.current is not None:
            await self.durable.save_last(self.current)

    async def close(self, *, remove: bool = False) -> None:
        """End it, also while it runs code.

        Args:
            remove: Whether to remove what was saved of it at a URL, too.
        """
        self.ended = True
        if self.durable is not None:
            await self.durable.close()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self.running is not None:
            await self.running.close()
        await self._leave_name(remove)

    async def _leave_name(self, remove: bool) -> None:
        """Release the name for other daemons, after the last code has run here."""
        remote = None if self.durable is None else self.durable.remote
        if remote is None and remove and isinstance(self.options.get("durable"), str):
            try:
                remote = self._remote()  # it had no kernel in this process
            except InvalidInputError as error:
                _log.warning("the saves of session %r could not be removed: %s", self.record.name, error)
        if remote is not None:
            await (remote.remove() if remove else remote.release())


def saves_of(store: NamedStore) -> Path | None:
    """Return the directory of the saves of durable sessions; None if the store is in memory only."""
    return None if store.directory is None else store.directory / "saves"


def _local_time(since_epoch: float) -> str:
    return datetime.fromtimestamp(since_epoch).astimezone().isoformat(" ", "seconds")
