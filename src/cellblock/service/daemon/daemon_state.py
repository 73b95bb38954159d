"""The state shared by the clients of one daemon: its sessions, and facts about the daemon."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from cellblock.common import telemetry
from cellblock.common.turns import Turns
from cellblock.common.version import __version__
from cellblock.errors import DaemonError, NotFoundError
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.model.sessions import mark_of
from cellblock.operations.base import PROTOCOL
from cellblock.service.daemon.handover import Handover
from cellblock.service.daemon.lease import Lease, now
from cellblock.service.daemon.uploads import Uploads
from cellblock.service.named.named_sessions import NamedSessions


class Bound(NamedTuple):
    """What ends with a client's connection.

    Attributes:
        sessions: Names of sessions.
        programs: Programs, each with the name or id of its session.
    """

    sessions: set[str]
    programs: list[tuple[str, dict[str, Any]]]


class Server:
    """The state shared by the clients of one daemon.

    Attributes:
        sessions: The sessions.
        clients: What ends with each connection, by its transport.
        asked_to_end: Set when a client has ended the daemon.
        custodian: Holds the kernels, so that they outlive this process, or None.
        default_timeout: Seconds that code may run if its client sets no limit.
        uploads: Files that arrive in parts.
        turns: Prevents answers to many clients from blocking the event loop.
        lease: The lease of a cluster node; None if this is not a node.
        credentials: A file with the cluster's certificate and key; None if this is not a cluster node.
        origins: The marks of the nodes that created the sessions here.
        promised: Names of sessions that placements are about to create.
        made: Names of sessions that were created since the last `Census`.
        handover: Detects a replaced installation; None if this server has no daemon to hand over to.
        handing_over: Whether the next daemon takes over. The sessions continue.
        asked_to_restart: Whether the next daemon will take over as soon as nothing would be lost.
        once: The number of running requests that must not be repeated.
        connections: The open connections to ports, by session and id; None while one is being made.
    """

    def __init__(
        self,
        sessions: NamedSessions,
        default_timeout: float | None = 60.0,
        *,
        custodian: Custodian | None = None,
        lease: Lease | None = None,
        credentials: Path | None = None,
    ) -> None:
        self.sessions = sessions
        self.custodian = custodian
        self.clients: dict[asyncio.Transport, Bound] = {}
        self.asked_to_end = asyncio.Event()
        self.default_timeout = default_timeout
        self.started = time.time()
        self._began = time.monotonic()
        self.uploads = Uploads()
        self.turns = Turns()
        self.lease = lease
        self.credentials = credentials
        self.origins = {mark_of(named.record.kernel_id) for named in sessions.all()}
        self._not_before = 0 if lease is None else now()
        self.promised: Counter[str] = Counter()
        self.made: set[str] = set()
        self.handover: Handover | None = None
        self.handing_over = self.asked_to_restart = False
        self.once = 0
        self.connections: dict[tuple[str, str], asyncio.StreamWriter | None] = {}
        self._ending: set[asyncio.Task[Any]] = set()

    @property
    def ending(self) -> bool:
        """Whether no more requests are accepted."""
        return self.asked_to_end.is_set()

    async def hand_over(self, patience: float) -> bool:
        """Start a handover if the installation was replaced and nothing in progress would be lost.

        Args:
            patience: As for `Handover.possible`.

        Returns:
            Whether a handover has started, so that no more requests are accepted.
        """
        if self.handover is None or self.ending:
            return self.handing_over
        possible = self.asked_to_restart or await self.handover.possible(self._tied(), patience)
        if possible and not self._tied() and not self.ending:
            self.handing_over = True
            self.asked_to_end.set()
        return self.handing_over

    def _tied(self) -> list[str]:
        tied = self.sessions.tied()
        if bound := sum(len(one.sessions) + len(one.programs) for one in self.clients.values()):
            tied.append(f"{bound} sessions or programs that end with their client")
        if self.once:
            tied.append(f"{self.once} requests that are being answered")
        return tied + [f"{number} uploads" for number in [len(self.uploads)] if number]

    @contextmanager
    def placed(self, grant: str, names: Iterable[str]) -> Iterator[None]:
        """Count sessions with these names as present, while the context creates them.

        Raises:
            NotPlacedError: This is a cluster node, and the sessions must not be created here.
        """
        if self.lease is None:
            yield
            return
        self.lease.check(grant, self._not_before)
        taken = [*names]
        self.promised.update(taken)
        try:
            yield
        finally:
            self.promised.subtract(taken)
            self.made.update(taken)
            for name in taken:
                if not self.promised[name]:
                    del self.promised[name]

    def refuse_older_placements(self) -> None:
        """Reject placements decided before now, because the director may have counted on a session that has left."""
        self._not_before = now()

    def end_session(self, name: str) -> None:
        """End a session whose connection was closed, in the background."""
        self._end(self.sessions.destroy(name))

    def end_program(self, session: str, info: dict[str, Any]) -> None:
        """Stop a program whose connection was closed, if it still runs.

        A program of a later session with the same id continues. So do background processes of an ended program.
        """
        named = self.sessions.known(session)
        if named is not None and named.current is not None:
            with suppress(NotFoundError):
                process = named.current.process(info["id"])
                if process.info.started == info["started"] and process.poll() is None:
                    self._end(process.stop())

    def _end(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def about(self) -> dict[str, Any]:
        """Return the status of the daemon, for `About`."""
        about = self.sessions.about()
        if self.handover is not None and self.handover.problem:
            about["problems"].append(self.handover.problem)
        if self.asked_to_restart and (tied := self._tied()):
            about["problems"].append(f"the next daemon takes over as soon as that loses nothing: {'; '.join(tied)}")
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            "pid": os.getpid(),
            "started": self.started,
            "uptime": time.monotonic() - self._began,
            "custodian": None if self.custodian is None else self.custodian.pid,
            "clients": len(self.clients),
            "figures": telemetry.FIGURES.as_data(),
            **about,
        }


def other_version(version: str, protocol: str) -> DaemonError:
    return DaemonError(
        f"the daemon is cellblock {__version__} (protocol {PROTOCOL}) and this client {version} ({protocol}): "
        "'cellblock daemon restart' replaces it. That saves and resumes durable sessions; the variables of all others are "
        f"lost, unless they are saved before with cellblock {__version__} ('cellblock save')"
    )
