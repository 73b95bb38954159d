"""`Session.put`, `get` and `variables`: moves values in and out, in forms that are safe to read."""

from __future__ import annotations

import asyncio
import base64
import keyword
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from cellblock.errors import CodeExecutionError, ExecutionTimeoutError, InvalidInputError, KernelDiedError, ProtocolError
from cellblock.wire.messages import VALUE_MIME

if TYPE_CHECKING:
    from cellblock.host.kernels.cell import OnInput
    from cellblock.model import CodeExecutionResult
    from cellblock.model.variables import Survey

Run: TypeAlias = "Callable[[str, OnInput | None], Awaitable[CodeExecutionResult]]"
"""Runs a cell that leaves no trace."""

_PIECE = 3 * 1024 * 1024
_ROOM = 4096  # for the name of the form
_MODULE = "__import__('cellblock.worker.values.exchange', fromlist=['take'])"


async def put(run: Run, limit: int, name: str, value: object) -> None:
    """Set a variable of a session; see `Session.put`."""
    _check_name(name)
    lines = await asyncio.to_thread(_lines, value, limit)
    pieces = iter(lines)

    async def next_piece(_prompt: str) -> str:
        return next(pieces, "")

    message = sent(await run(f"{_MODULE}.take({name!r}, {len(lines)})", next_piece))
    if message is not None:
        _check_not_refused(message)


async def get(run: Run, limit: int, name: str, *, unpickle: bool) -> Any:
    """Return the value of a variable of a session; see `Session.get`."""
    _check_name(name)
    message = sent(await run(f"{_MODULE}.give({name!r}, {limit - _ROOM}, {unpickle!r})", None))
    if message is None:
        raise InvalidInputError(f"the session did not send the value of {name!r}")
    _check_not_refused(message)
    from cellblock.wire.values.forms import decode  # as above

    return await asyncio.to_thread(decode, message, limit, unpickle=unpickle)


async def survey(run: Run, seconds: float | None = None) -> Survey:
    """Return the variables of a session.

    Args:
        run: Runs a cell that leaves no trace.
        seconds: Time limit for hashing the values; None for no hashes.
    """
    from cellblock.model.variables import read_survey  # as below

    message = sent(await run(f"{_MODULE}.tell({seconds!r})", None))
    if message is None:
        raise ProtocolError("the session did not send a survey of its variables")
    return read_survey(message)


def _lines(value: object, limit: int) -> list[str]:
    from cellblock.wire.values.forms import encode  # loads pickle; few programs need it

    message = encode(value, limit - _ROOM)
    starts = range(0, len(message), _PIECE)
    return [base64.b64encode(message[start : start + _PIECE]).decode() for start in starts]


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidInputError(f"the name of a variable must be an identifier, not {name!r:.80}")


def sent(result: CodeExecutionResult, failed: str = "the value was not carried") -> bytes | None:
    """Return the value that a cell has sent; None if it has sent none.

    Args:
        result: The cell's result.
        failed: The message if the cell failed.

    Raises:
        KernelDiedError, ExecutionTimeoutError, CodeExecutionError: It failed.
    """
    if result.status == "died":
        raise KernelDiedError(result.error.evalue if result.error else "the kernel died")
    if result.status == "timeout":
        raise ExecutionTimeoutError(f"{failed}: the session took too long", result)
    if result.error is not None:
        raise CodeExecutionError(f"{failed}: {result.error.ename}: {result.error.evalue[:1000]}", result)
    for item in result.outputs:
        if isinstance(message := item.data.get(VALUE_MIME), bytes):
            return message
    return None


def _check_not_refused(message: bytes) -> None:
    if message.startswith(b"refused\n"):
        raise InvalidInputError(message[8:1008].decode("utf-8", "replace"))
