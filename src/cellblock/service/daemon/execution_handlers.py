"""Handlers of operations on executions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.model.sessions import OWN_KERNEL, ExecutionEvent, ExecutionRecord
from cellblock.operations.data import Data, as_data
from cellblock.operations.executions import Answer, Cancel, Executions, Follow, Lookup, Source, Submit
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers, seconds
from cellblock.service.named.ended_executions import EndedExecution
from cellblock.service.named.executions import Execution


@answers(Submit, with_body=True)
async def submitted(server: Server, request: Submit, body: bytes) -> Any:
    """Handle `Submit`. The client's connection handles `wait`, which is the hot path."""
    execution = submit(server, request, body)
    if request.follow:
        return (as_data(event) async for event in execution.follow())
    return as_data(execution.record)


def submit(server: Server, request: Submit, body: bytes) -> Execution | EndedExecution:
    """Submit code; return its execution, or the earlier execution with the same key.

    Raises:
        CellblockError: The code was not submitted.
    """
    named = server.sessions.find(request.session)
    if request.retry:
        named.count_attempt()
    execution = Execution(
        named.record.kernel_id,
        named.record.name,
        _code(body),
        language=request.language,
        kernel_type=OWN_KERNEL if request.own else named.record.kernel_type,
        timeout=server.default_timeout if request.timeout == 0 else seconds(request.timeout),
        key=request.key,
        live=request.live,
        stdin=request.stdin,
        silent=request.silent,
        parent=request.parent,
    )
    return server.sessions.executions.submit(named, execution)


@answers(Follow)
async def follow(server: Server, request: Follow) -> AsyncGenerator[Data[ExecutionEvent], None]:
    _, execution = server.sessions.executions.find(request.execution)
    return _events(execution, request.after, answers=request.answers)


@answers(Lookup)
async def lookup(server: Server, request: Lookup) -> Data[ExecutionRecord]:
    executions = server.sessions.executions
    if request.execution:
        _, execution = executions.find(request.execution)
    else:
        execution = executions.find_key(server.sessions.find(request.session), request.key)
    return as_data(execution.record)


@answers(Source)
async def source(server: Server, request: Source) -> str:
    _, execution = server.sessions.executions.find(request.execution)
    return execution.code


@answers(Executions)
async def listed(server: Server, request: Executions) -> list[Data[ExecutionRecord]]:
    await server.turns.give_way()
    last = server.sessions.executions.last(server.sessions.find(request.session), request.count)
    return [as_data(record) for record in last]


@answers(Cancel)
async def cancel(server: Server, request: Cancel) -> bool:
    named, execution = server.sessions.executions.find(request.execution)
    return await execution.cancel(None if named is None else named.current)


@answers(Answer, with_body=True)
async def answer(server: Server, request: Answer, body: bytes) -> bool:
    _, execution = server.sessions.executions.find(request.execution)
    if isinstance(execution, EndedExecution):
        return False  # the execution no longer waits for input
    return execution.stdin.answer(None if request.end else body.decode("utf-8", "replace"))


async def _events(
    execution: Execution | EndedExecution, after: int, *, answers: bool
) -> AsyncGenerator[Data[ExecutionEvent], None]:
    """Yield events for a client, which counts as a reader of `input()` prompts if it answers them."""
    asked = execution if answers and isinstance(execution, Execution) else None
    if asked is not None:
        asked.stdin.add_reader()
    try:
        async for event in execution.follow(after):
            yield as_data(event)
    finally:
        if asked is not None and not asked.ended:
            asked.stdin.remove_reader()


def _code(body: bytes) -> str:
    try:
        return body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the code is not UTF-8: {error.reason} at byte {error.start}") from None
