"""Checkpoints and branches of named sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.errors import CheckpointError, InvalidInputError
from cellblock.model.sessions import SessionRecord

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.named.sessions import NamedSessions


def find(session: Session, name: str) -> Checkpoint:
    """Return a checkpoint of a session, by its id or its name: the last one of that name.

    Raises:
        CheckpointError: There is none.
    """
    known = session.checkpoints()
    for checkpoint in reversed(known):
        if name and name in (checkpoint.id, checkpoint.name):
            return checkpoint
    named = ", ".join(checkpoint.name or checkpoint.id for checkpoint in known[-10:]) or "none"
    raise CheckpointError(f"there is no checkpoint {name!r} of this session; it has: {named}")


async def fork(sessions: NamedSessions, session: str, names: Sequence[str]) -> list[SessionRecord]:
    """Make sessions that begin with the state that another one has now.

    Args:
        sessions: All sessions.
        session: The name or the id of the other one.
        names: What to call them. None of them may exist.

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
    checkpoint = await live.checkpoint()
    try:
        made = await asyncio.gather(
            *(
                sessions.create(name, named.options, named.record.tags, fresh=True, read=options, start_from=checkpoint)
                for name in names
            ),
            return_exceptions=True,
        )
    finally:
        await checkpoint.drop()
    failures = [one for one in made if isinstance(one, BaseException)]
    if failures:
        await asyncio.gather(*(sessions.destroy(one.record.kernel_id) for one in made if not isinstance(one, BaseException)))
        raise failures[0]
    return [one.shown() for one in made if not isinstance(one, BaseException)]
