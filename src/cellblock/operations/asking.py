"""Requests that are built in several steps from callers' arguments, with validation shared by all interfaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError, InvalidInputError
from cellblock.operations.data import session_of
from cellblock.operations.network import ChangeNetwork
from cellblock.operations.sessions import Interrupt

if TYPE_CHECKING:
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
