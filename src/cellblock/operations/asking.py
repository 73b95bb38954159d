"""Requests that are built in several steps from callers' arguments, with validation shared by all interfaces."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError, InvalidInputError
from cellblock.model.checkpoints import branch_names, check_seeds
from cellblock.model.programs import as_command, check_size
from cellblock.operations.checkpoints import Fork
from cellblock.operations.data import milliseconds, process_of, session_of
from cellblock.operations.network import ChangeNetwork
from cellblock.operations.programs import Exec, ReadProcess, Spawn, StopProcess
from cellblock.operations.sessions import Interrupt

if TYPE_CHECKING:
    from cellblock.model.programs import ProcessInfo
    from cellblock.model.sessions import SessionRecord


def change_of(
    kernel: SessionRecord | str,
    allow: Sequence[str],
    deny: Sequence[str],
    http: Sequence[str],
    remove: Sequence[str],
    expect: int | None,
    by: str = "",
) -> ChangeNetwork:
    """Return the request of `change_network`."""
    for lines in (allow, deny, http, remove):
        if isinstance(lines, str):
            raise InvalidInputError(f"the lines of a network are a list of patterns; write [{lines!r}]")
    lists = tuple(allow), tuple(deny), tuple(http), tuple(remove)
    return ChangeNetwork(session_of(kernel), *lists, -1 if expect is None else expect, by)


def exec_of(
    kernel: SessionRecord | str,
    command: Sequence[str] | str,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str | None] | None,
    timeout: float | None,
    merge: bool,
    log: str,
    max_output: int,
    stop: str,
) -> Exec:
    """Return the request of `exec_process`; its input is the body (`as_bytes`)."""
    limit = milliseconds(timeout)
    return Exec(session_of(kernel), as_command(command), os.fspath(cwd), env or {}, limit, merge, log, max_output, stop)


def spawn_of(
    kernel: SessionRecord | str,
    command: Sequence[str] | str,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str | None] | None,
    stdin: bool,
    pty: tuple[int, int] | None,
    merge: bool,
    log: str,
    keep: str,
    label: str,
) -> Spawn:
    """Return the request of `spawn_process`."""
    size = (0, 0) if pty is None else check_size(pty)
    return Spawn(session_of(kernel), as_command(command), os.fspath(cwd), env or {}, stdin, *size, merge, log, keep, label)


def read_of(kernel: SessionRecord | str, process: ProcessInfo | str, since: int, wait: float) -> ReadProcess:
    """Return the request of `read_process`."""
    return ReadProcess(session_of(kernel), process_of(process), since, milliseconds(wait, "wait", may_be_zero=True))


def stop_of(kernel: SessionRecord | str, process: ProcessInfo | str, grace: float, scope: str) -> StopProcess:
    """Return the request of `stop_process`."""
    return StopProcess(session_of(kernel), process_of(process), milliseconds(grace, "grace", may_be_zero=True), scope)


def fork_of(
    kernel: SessionRecord | str,
    names: Sequence[str],
    files: str | None,
    seeds: Sequence[int] | None,
    same_random_state: bool,
) -> Fork:
    """Return the request of `fork`."""
    check_seeds(seeds or ())
    return Fork(session_of(kernel), branch_names(names), files or "", tuple(seeds or ()), same_random_state)


def as_bytes(data: bytes | str, name: str) -> bytes:
    """Return the input of a program as bytes; text becomes UTF-8.

    Args:
        data: The argument.
        name: The argument's name, for messages.

    Raises:
        InvalidInputError: The input is neither bytes nor text.
    """
    if not isinstance(data, bytes | str):
        raise InvalidInputError(f"{name} must be bytes or text, not {type(data).__name__}")
    return data.encode() if isinstance(data, str) else data


def as_code(code: str) -> bytes:
    """Return code, or a line of text, as the body of a request.

    Raises:
        InvalidInputError: It is not a string.
    """
    if not isinstance(code, str):
        raise InvalidInputError(f"code must be a string, not {type(code).__name__}")
    return code.encode("utf-8", "surrogatepass")


async def stop_submission(call: Callable[[Interrupt], Awaitable[bool]], session: str, key: str) -> None:
    """Stop an execution whose caller no longer waits for it. The execution may arrive after the first of these requests.

    Args:
        call: Runs an operation.
        session: The session.
        key: The key of the execution.
    """
    import asyncio  # not for clients without a loop

    with suppress(CellblockError):
        for _ in range(10):
            if await call(Interrupt(session, key)):
                return
            await asyncio.sleep(0.01)
