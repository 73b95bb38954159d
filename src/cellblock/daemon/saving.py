"""Answers requests to write a session to a file, and to read one from a file."""

from __future__ import annotations

import os
from typing import Any

from cellblock.daemon.messages import Export, Load, Save, Variables
from cellblock.errors import InvalidInputError, UnsupportedError
from cellblock.model.sessions import OWN_KERNEL
from cellblock.named.sessions import NamedSessions


async def answer(sessions: NamedSessions, request: Save | Load | Export | Variables) -> Any:
    """Do what a client asks; return JSON data.

    Raises:
        CellblockError: What is wrong.
    """
    kernel_type = sessions.find(request.session).record.kernel_type
    if kernel_type != OWN_KERNEL and not isinstance(request, Export):
        raise UnsupportedError(
            f"cellblock knows the variables of Python sessions only, and the kernel type of this one is {kernel_type!r}"
        )
    if not isinstance(request, Variables) and not os.path.isabs(request.path):
        raise InvalidInputError(f"the path of a file must be absolute, not {request.path!r}")
    session = await sessions.live(request.session)
    match request:
        case Save(path=path, workspace=workspace, timeout=timeout):
            return (await session.save(path, workspace=workspace, timeout=_seconds(timeout))).to_dict()
        case Load(path=path, workspace=workspace, timeout=timeout):
            return (await session.load(path, workspace=workspace, timeout=_seconds(timeout))).to_dict()
        case Export(path=path):
            await session.export(path)
            return True
        case Variables():
            return [variable.to_dict() for variable in await session.variables()]


def _seconds(milliseconds: int) -> float | None:
    return None if milliseconds < 0 else milliseconds / 1000
