"""What clients ask about checkpoints of a session, and its branches."""

from __future__ import annotations

import asyncio
from typing import Any

from cellblock.daemon.messages import Adopt, Checkpoints, Diff, DropCheckpoint, Fork, MakeCheckpoint, Restore, Undo
from cellblock.errors import UnsupportedError
from cellblock.model.sessions import OWN_KERNEL
from cellblock.named import checkpoints
from cellblock.named.sessions import NamedSessions
from cellblock.wire.packed import pack


async def answer(
    sessions: NamedSessions, request: MakeCheckpoint | Checkpoints | Restore | DropCheckpoint | Undo | Diff | Fork | Adopt
) -> Any:
    """Do what a client asks; return JSON data.

    Raises:
        CellblockError: What is wrong.
    """
    record = sessions.find(request.session).record
    label, kernel_type = record.name, record.kernel_type
    if kernel_type != OWN_KERNEL:
        raise UnsupportedError(f"only Python sessions have checkpoints, and the kernel type of this one is {kernel_type!r}")
    session = await sessions.live(request.session)
    match request:
        case MakeCheckpoint(name=name, files=files):
            return (await session.checkpoint(name, files=files)).record.to_dict()  # type: ignore[arg-type]  # it checks it
        case Checkpoints():
            return [checkpoint.record.to_dict() for checkpoint in session.checkpoints()]
        case Restore(checkpoint=wanted):
            checkpoint = checkpoints.find(session, label, wanted)
            restored = await session.restore(checkpoint)
            return await asyncio.to_thread(lambda: pack({**checkpoint.record.to_dict(), "changes": restored.to_dict()}))
        case DropCheckpoint(checkpoint=wanted):
            await checkpoints.find(session, label, wanted).drop()
            return True
        case Undo(count=count, partial=partial):
            return (await session.undo(count, partial=partial)).to_dict()
        case Diff(checkpoint=wanted):
            changes = await session.diff(checkpoints.find(session, label, wanted))
            return await asyncio.to_thread(lambda: pack(changes.to_dict()))  # it can name a hundred thousand files
        case Fork(names=names, files=files, seeds=seeds, same_random_state=same):
            made = await checkpoints.fork(
                sessions,
                request.session,
                names,
                files=files or None,  # type: ignore[arg-type]  # it checks it
                seeds=seeds or None,
                same_random_state=same,
            )
            return [record.to_dict() for record in made]
        case Adopt(branch=branch):
            adopted = await checkpoints.adopt(sessions, request.session, branch)
            return await asyncio.to_thread(lambda: pack(adopted.to_dict()))
