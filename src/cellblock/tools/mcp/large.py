"""Handles large messages: results of calls reach the session without being decoded here.

A separate program, `condense`, extracts the result from such a message. A short message takes its place.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock.tools.calling.content import MAX_MESSAGE
from cellblock.tools.mcp.condense import HEAD, LARGE, marks
from cellblock.tools.mcp.condense import MAX_VALUES as MAX_VALUES_OF_A_RESULT
from cellblock.tools.mcp.undecodable import repaired

if TYPE_CHECKING:
    # Importing it takes 10 ms, before a server is started.
    from asyncio.subprocess import Process

MAX_VALUES = 40_000
"""Maximum values of a message that is not the result of a call. It is decoded in the loop."""

_FEW = 20_000  # values that are decoded directly in the loop
_SMALL = 1024 * 1024  # bytes decoded directly in the loop
_PROGRAM = Path(__file__).with_name("condense.py")
_SECONDS = 30.0  # takes less than two on an idle machine
_PIECE = 256 * 1024
_MAX_KEPT = 4 * MAX_MESSAGE


class RefusedMessageError(ValueError):
    """A message is refused; the text has the reason."""


class NotJsonError(RefusedMessageError):
    """A large message is not JSON, or is nested too deeply to be decoded."""


class LargeResults:
    """The large results of one connection, from their arrival until their calls return."""

    def __init__(self) -> None:
        self._kept: dict[str, bytearray] = {}
        self._turn = asyncio.Lock()  # one program at a time: each takes memory

    async def condense(self, message: bytes) -> bytes:
        """Return a message that can be decoded in the loop: the same one, or a short one in place of a large result.

        Raises:
            RefusedMessageError: The message exceeds a limit.
            NotJsonError: The message cannot be decoded.
        """
        if not is_large(message):
            return repaired(message)
        token = secrets.token_hex(8)
        async with self._turn:
            values, short, value = await _condensed(message, token)
        _check(values, short)
        if short:
            self._keep(token, value)
        return repaired(short) or message

    def _keep(self, token: str, value: bytearray) -> None:
        self._kept[token] = value
        while sum(map(len, self._kept.values())) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]  # the oldest: its call was cancelled, or too many arrive at once

    def take(self, meta: Any) -> bytearray | None:
        """Return the large result named by a short one's metadata, as JSON; None if it names none.

        Raises:
            ValueError: The result was already dropped.
        """
        token = meta.get(LARGE) if isinstance(meta, dict) else None
        if token is None:
            return None
        value = self._kept.pop(token, None) if isinstance(token, str) else None
        if value is None:
            raise ValueError("too many large results at once: make fewer calls at the same time")
        return value


def is_large(message: bytes) -> bool:
    """Return whether a message may take long to decode: a quick estimate, which also counts commas and brackets in strings."""
    return len(message) > _SMALL or (len(message) > _FEW and marks(message) > _FEW)


def _check(values: int, short: bytes) -> None:
    """Refuse a message that has too many values even without the result of a call."""
    for count, limit in ((values, MAX_VALUES_OF_A_RESULT), (marks(short) if short else values, MAX_VALUES)):
        if count > limit:
            what = f"it sent a message of more than {limit} values"
            raise RefusedMessageError(f"{what}: request less data, or the rows as one text, such as CSV")


async def _condensed(message: bytes, token: str) -> tuple[int, bytes, bytearray]:
    """Run the program; return the number of values, a short message and a result."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_PROGRAM), token),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        cwd="/",
        limit=_PIECE,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            return await _exchange(process, message)
    except TimeoutError:
        raise RefusedMessageError("it sent a message that takes too long to decode") from None
    except asyncio.IncompleteReadError:
        raise NotJsonError("it sent a large message that is not valid JSON, or nested too deeply, or has NaN") from None
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())


async def _exchange(process: Process, message: bytes) -> tuple[int, bytes, bytearray]:
    """Write a message and read the answer, in pieces."""
    assert process.stdin is not None
    assert process.stdout is not None
    view = memoryview(message)
    try:
        for start in range(0, len(message), _PIECE):
            process.stdin.write(view[start : start + _PIECE])
            await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it has failed, and writes no answer
    process.stdin.close()
    values, length = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
    short, value = await process.stdout.readexactly(length), bytearray()
    while piece := await process.stdout.read(_PIECE):
        value += piece
    if await process.wait():
        raise asyncio.IncompleteReadError(b"", None)
    return values, short, value
