"""Runs code for E2B's clients, and streams its output. If a client leaves, its code is stopped."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.e2b.answers import read
from cellblock.fronts.e2b.contexts import PYTHON, contexts_of
from cellblock.fronts.e2b.results import END, KEEPALIVE, error, messages
from cellblock.fronts.gateway.answers import Attended, in_turns, json_pieces
from cellblock.fronts.gateway.events import with_pauses
from cellblock.model.sessions import OWN_KERNEL, Language
from cellblock.operations.executions import Cancel, Follow, Submit
from cellblock.service.named.kernel_types import cell

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from cellblock.service.daemon.link import SessionLink

_QUIET = 5.0
"""Seconds without output after which something is sent, so that no proxy gives up the connection."""

_MAX_VARIABLES = 1000


class ExecuteRequest(BaseModel):
    """A request to run code. Newer clients may send more fields."""

    model_config = ConfigDict(strict=True)

    code: str
    context_id: str | None = Field(None, max_length=200)
    language: str | None = Field(None, max_length=40)
    env_vars: dict[str, str] | None = Field(None, max_length=_MAX_VARIABLES)


async def execute(request: Request) -> Response:
    """Run code. Errors before the start set the status; later errors are messages."""
    wanted = await read(request, ExecuteRequest)
    if wanted.context_id and wanted.language:
        raise InvalidInputError("Only one of context_id or language can be provided")
    contexts = contexts_of(request)
    link: SessionLink = request.app.state.link
    context = contexts.find(wanted.context_id, wanted.language)
    language: Language = "bash" if context.language == "bash" else "python"
    code = wanted.code.encode("utf-8", "surrogatepass")
    # The client has its own time limit, and leaves then.
    submit = partial(Submit, language=language, timeout=-1, live=True)
    if not wanted.env_vars:
        async with contexts.arming:
            return Lines(link, (await contexts.ask(submit, code, context))["id"])
    name = secrets.token_hex(8)
    arm = _arm(name, cell(wanted.code, language, OWN_KERNEL), wanted.env_vars, context.language)
    silently = partial(Submit, silent=True)

    async def disarm() -> None:
        await contexts.ask(silently, f"get_ipython().e2b.disarm({name!r})".encode(), context)

    async with contexts.arming:  # so that its cell is the next one
        await contexts.ask(silently, arm, context)
        return Lines(link, (await contexts.ask(submit, code, context))["id"], disarm)


def _arm(name: str, code: str, variables: dict[str, str], language: str) -> bytes:
    """Return code that sets variables for the next cell only.

    Args:
        name: A name for the cell.
        code: The cell's code.
        variables: The variables.
        language: The language of the context.

    Raises:
        InvalidInputError: The variables cannot be set.
    """
    if language not in (PYTHON, "bash"):
        raise InvalidInputError(f"env_vars are for Python and bash, not for {language}")
    for variable, value in variables.items():
        if not variable or "=" in variable or "\0" in variable + value:
            raise InvalidInputError(f"env_vars: {variable[:40]!r} cannot be set to this value")
    digest = hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
    return f"get_ipython().e2b.arm({name!r}, {digest!r}, {variables!r})".encode("utf-8", "surrogatepass")


class Lines(Attended):
    """A response with an execution's output: JSON objects, one per line. If the client leaves, the execution is stopped."""

    def __init__(self, link: SessionLink, execution: str, on_stop: Callable[[], Awaitable[None]] | None = None) -> None:
        """Set up.

        Args:
            link: The link to the execution.
            execution: The execution's id.
            on_stop: Called when it was stopped, perhaps before it began.
        """
        super().__init__(self._lines(), "application/json")
        self._link = link
        self._execution = execution
        self._on_stop = on_stop
        self._complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if not self._complete:
                await asyncio.shield(asyncio.create_task(self._stop()))

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._messages()) as told:
            async for message in told:
                async for piece in in_turns(json_pieces(message)):
                    yield piece
                yield b"\n"
        self._complete = True

    async def _messages(self) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async with aclosing(with_pauses(self._link.follow(Follow(self._execution)), _QUIET)) as events:
                async for event in events:
                    for message in [KEEPALIVE] if event is None else messages(event):
                        yield message
        except CellblockError as failed:
            yield error(type(failed).__name__, str(failed))
        yield END

    async def _stop(self) -> None:
        with suppress(CellblockError):  # the daemon has ended, and the execution with it
            await self._link.call(Cancel(self._execution))
            if self._on_stop is not None:
                await self._on_stop()
