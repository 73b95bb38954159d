"""Moves the values of a session's variables in and out, in forms that are safe to read."""

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
    from cellblock.host.kernels.cells import Cells
    from cellblock.model import CodeExecutionResult
    from cellblock.model.variables import Survey, Variable

Run: TypeAlias = "Callable[[str, OnInput | None], Awaitable[CodeExecutionResult]]"
"""Runs a cell that leaves no trace."""

_PIECE = 3 * 1024 * 1024
_ROOM = 4096  # for the name of the form
_MODULE = "__import__('cellblock.worker.values.exchange', fromlist=['take'])"

_LONG_SURVEY = 64 * 1024
"""Bytes of a survey of variables that is read in a thread, most of it in Python code that lets others run."""


class Values:
    """The variables of a session."""

    def __init__(self, name: str, cells: Cells, limit: int) -> None:
        """Store the arguments.

        Args:
            name: The session's name in messages.
            cells: The session's cells.
            limit: Maximum size of a value in bytes.
        """
        self._name = name
        self._cells = cells
        self._limit = limit

    async def put(self, name: str, value: object) -> None:
        """Set a variable of the session.

        Supported values are text, bytes, numbers, lists and dicts, NumPy arrays, data frames of pandas and polars, and tables
        of pyarrow (docs/sessions.md). No file and no history entry remains.

        Args:
            name: The variable.
            value: The value.

        Raises:
            InvalidInputError: The name is invalid, the value is not supported, or it exceeds the limits of a cell.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        _check_name(name)
        lines = await asyncio.to_thread(_lines, value, self._limit)
        pieces = iter(lines)

        async def next_piece(_prompt: str) -> str:
            return next(pieces, "")

        message = sent(await self._cells.run_silently(f"{_MODULE}.take({name!r}, {len(lines)})", next_piece))
        if message is not None:
            _check_not_refused(message)

    async def get(self, name: str, *, unpickle: bool = False) -> Any:
        """Return the value of a variable of the session, if `put` supports its type.

        Args:
            name: The variable.
            unpickle: Whether to pickle any other value, and unpickle it here. The session's code can then run anything in this
                program.

        Raises:
            InvalidInputError: The variable does not exist, its value is not supported, or it exceeds the limits of a cell.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        _check_name(name)
        message = sent(await self._cells.run_silently(f"{_MODULE}.give({name!r}, {self._limit - _ROOM}, {unpickle!r})", None))
        if message is None:
            raise InvalidInputError(f"the session did not send the value of {name!r}")
        if message == f"refused\nthe session has no variable {name!r}".encode():
            raise InvalidInputError(f"{self._name} has no variable {name!r}; variables() lists its variables")
        _check_not_refused(message)
        from cellblock.wire.values.forms import decode  # loads pickle, and is rarely used

        return await asyncio.to_thread(decode, message, self._limit, unpickle=unpickle)

    async def variables(self) -> list[Variable]:
        """Return the session's variables, each with type, size, shape, and a short text.

        This calls no method that the session's code defined. Of many thousands of variables, only the first ones that fit in a
        1 MB message are returned.

        Raises:
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        return [*(await survey(self._cells.run_to_look)).variables.values()]


async def survey(run: Run, seconds: float | None = None) -> Survey:
    """Return the variables of a session.

    Args:
        run: Runs a silent cell.
        seconds: Time limit for hashing the values; None for no hashes.
    """
    from cellblock.model.variables import read_survey  # as below

    message = sent(await run(f"{_MODULE}.tell({seconds!r})", None))
    if message is None:
        raise ProtocolError("the session did not send a survey of its variables")
    return await asyncio.to_thread(read_survey, message) if len(message) > _LONG_SURVEY else read_survey(message)


def _lines(value: object, limit: int) -> list[str]:
    from cellblock.wire.values.forms import encode  # loads pickle, and is rarely used

    message = encode(value, limit - _ROOM)
    starts = range(0, len(message), _PIECE)
    return [base64.b64encode(message[start : start + _PIECE]).decode() for start in starts]


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidInputError(f"the name of a variable must be an identifier, not {name!r:.80}")


def sent(result: CodeExecutionResult, failed: str = "the value was not carried") -> bytes | None:
    """Return the value that a cell sent, if any.

    Args:
        result: The cell's result.
        failed: The message if the cell failed.

    Raises:
        KernelDiedError, ExecutionTimeoutError, CodeExecutionError: The cell failed.
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
