"""Checkpoints and branches of named sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.errors import InvalidInputError, UnknownCheckpointError
from cellblock.host.checkpoints.checkpoint import Beginning, find_checkpoint
from cellblock.host.checkpoints.forking import Branching
from cellblock.model.checkpoints import FilesMode
from cellblock.model.sessions import SessionRecord

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.model.checkpoints import Changes
    from cellblock.service.named.json_options import Options
    from cellblock.service.named.named_sessions import NamedSessions
    from cellblock.service.named.session import NamedSession


def find(session: Session, label: str, name: str) -> Checkpoint:
    """Return a checkpoint of a session by id, or the last one with a name.

    Raises:
        UnknownCheckpointError: No checkpoint matches.
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
    """Create sessions that start from the current state of another session.

    Args:
        sessions: All sessions.
        session: The name or id of the session to fork.
        names: The new names, none of which may exist.
        files: As for `Session.fork`.
        seeds: As for `Session.fork`.
        same_random_state: As for `Session.fork`.

    Raises:
        ConflictError: A name exists.
        CheckpointError, LaunchError: As for `Session.fork`. No session was created.
        NotFoundError, InvalidInputError: The session does not exist, or a name is invalid.
    """
    if not names or len({*names}) != len(names):
        raise InvalidInputError(f"each branch needs a name of its own; these were given: {', '.join(names) or 'none'}")
    named = sessions.find(session)
    live = await sessions.live(session)
    options = named.read
    if options.session.workspace is None:
        options = replace(options, session=replace(options.session, working_dir=live.workspace))
    left = iter(names)

    def make(beginning: Beginning) -> _Branch:
        return _Branch(sessions, named, options, next(left), beginning)

    branching = Branching(len(names), files, seeds, same_random_state, return_exceptions=False)
    made = await branching.start(live.checkpoint_for_branches, make, _Branch.start, _Branch.end)
    return [one.made.shown() for one in made if isinstance(one, _Branch) and one.made is not None]


class _Branch:
    """A named session that is a branch of another session."""

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
        except asyncio.CancelledError:  # created by a task of its own
            await self._sessions.destroy(self._name)
            raise

    async def end(self) -> None:
        if self.made is not None:
            await self._sessions.destroy(self.made.record.kernel_id)


async def adopt(sessions: NamedSessions, session: str, branch: str) -> Changes:
    """Continue from another session's state (usually a branch), and close that session.

    Args:
        sessions: All sessions.
        session: The name or id of the session that continues.
        branch: The session whose state to take.

    Raises:
        NotFoundError, CellblockError: A session does not exist; as for `Session.adopt`.
    """
    if sessions.find(session) is sessions.find(branch):
        raise InvalidInputError(f"session {session!r} cannot adopt itself")
    live, other = await sessions.live(session), await sessions.live(branch)
    async with sessions.find(session).going_back():
        changes = await live.continue_as(other)
    await sessions.end_adopted(branch, session)
    return changes
