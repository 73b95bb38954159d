"""Checkpoints and branches of named sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.errors import InvalidInputError, UnknownCheckpointError
from cellblock.host.checkpoints.branches import Beginning
from cellblock.host.checkpoints.checkpoint import find_checkpoint
from cellblock.host.checkpoints.forking import Branching
from cellblock.model.checkpoints import FilesMode
from cellblock.model.sessions import SessionRecord

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.model.checkpoints import Changes
    from cellblock.service.named.options import Options
    from cellblock.service.named.session import NamedSession
    from cellblock.service.named.sessions import NamedSessions


def find(session: Session, label: str, name: str) -> Checkpoint:
    """Return a checkpoint of a session by its id, or the last one of a name.

    Args:
        session: The session.
        label: The session's name, for messages.
        name: The id or the name of the checkpoint.

    Raises:
        UnknownCheckpointError: There is none.
    """
    try:
        return find_checkpoint(session.checkpoints(), name, f"session {label!r}")
    except UnknownCheckpointError as error:
        if not session.succession.states_lost:
            raise
        raise UnknownCheckpointError(f"{error}. Older ones ended with the daemon, which was killed") from None


async def fork(
    sessions: NamedSessions,
    session: str,
    names: Sequence[str],
    *,
    files: FilesMode | None = None,
    seeds: Sequence[int] | None = None,
    same_random_state: bool = False,
) -> list[SessionRecord]:
    """Make sessions that begin with the state that another one has now.

    Args:
        sessions: All sessions.
        session: The name or the id of the other one.
        names: Their names. None of them may exist.
        files: As for `Session.fork`.
        seeds: As for `Session.fork`.
        same_random_state: As for `Session.fork`.

    Raises:
        ConflictError: One of them exists.
        CheckpointError, LaunchError: As for `Session.fork`. None was made.
        NotFoundError, InvalidInputError: There is no such session; a name cannot be one.
    """
    if not names or len({*names}) != len(names):
        raise InvalidInputError(f"each branch needs a name of its own; these were given: {', '.join(names) or 'none'}")
    named = sessions.find(session)
    live = await sessions.live(session)
    options = replace(named.read, session=replace(named.read.session, working_dir=live.workspace))
    left = iter(names)

    def make(beginning: Beginning) -> _Branch:
        return _Branch(sessions, named, options, next(left), beginning)

    branching = Branching(len(names), files, seeds, same_random_state, return_exceptions=False)
    made = await branching.start(live, make, _Branch.start, _Branch.end)
    return [one.made.shown() for one in made if isinstance(one, _Branch) and one.made is not None]


class _Branch:
    """A named session that is a branch of another one."""

    def __init__(
        self, sessions: NamedSessions, origin: NamedSession, options: Options, name: str, beginning: Beginning
    ) -> None:
        self.made: NamedSession | None = None
        self._sessions, self._origin, self._options = sessions, origin, options
        self._name, self._beginning = name, beginning

    async def start(self) -> None:
        origin = self._origin
        given, tags = origin.options, origin.record.tags
        try:
            self.made = await self._sessions.create(
                *(self._name, given, tags),
                fresh=True,
                read=self._options,
                start_from=self._beginning,
                branch_of=origin.record.kernel_id,
                branch_at=max(origin.session.next_count - 1, 0),
            )
        except asyncio.CancelledError:  # made by a task of its own
            await self._sessions.destroy(self._name)
            raise

    async def end(self) -> None:
        if self.made is not None:
            await self._sessions.destroy(self.made.record.kernel_id)


async def adopt(sessions: NamedSessions, session: str, branch: str) -> Changes:
    """Continue a session with the state of another one, which ends.

    Args:
        sessions: All sessions.
        session: The name or the id of the session that continues.
        branch: The other one.

    Raises:
        NotFoundError, CellblockError: There is no such session; as for `Session.adopt`.
    """
    if sessions.find(session) is sessions.find(branch):
        raise InvalidInputError(f"session {session!r} cannot adopt itself")
    live, other = await sessions.live(session), await sessions.live(branch)
    async with sessions.find(session).going_back():
        changes = await live.continue_as(other)
    await sessions.end_adopted(branch, session)
    return changes
