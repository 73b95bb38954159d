"""Running code in sessions, and what ran."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from cellblock.errors import CellblockError, NotFoundError, failure
from cellblock.fronts.gateway.access import caller_of, link_of, settings_of
from cellblock.fronts.gateway.answers import json_response, packed_response
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.models import (
    ExecuteRequest,
    ExecutionResultModel,
    RetryExecuteRequest,
    SubmitRequest,
    model_of,
)
from cellblock.fronts.gateway.session_routes import Read, Run, create
from cellblock.model import MODEL_CHARS, CodeExecutionResult
from cellblock.model.overflow import Overflow, for_model
from cellblock.model.sessions import ExecutionRecord
from cellblock.operations.executions import Follow, Lookup, Submit
from cellblock.operations.files import WriteFile
from cellblock.wire.packed import Packed, pack, unpack

router = APIRouter(tags=["Execution"], route_class=CheckedRoute)

Format = Annotated[
    Literal["json", "model"],
    Query(description="`model` answers with one text for a language model, as `for_model` makes it, instead of JSON"),
]
MaxChars = Annotated[int, Query(ge=1, le=500_000, description="characters of the text, if `format=model`")]


async def _text_length(format: Format = "json", max_chars: MaxChars = MODEL_CHARS) -> int | None:  # noqa: A002  # as in the URL
    """Return the requested maximum length of the text for a language model; None if JSON is requested."""
    return max_chars if format == "model" else None


TextLength = Annotated[int | None, Depends(_text_length)]

RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The result: as JSON, or with `format=model` as text.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}
"""The OpenAPI responses of an endpoint that answers with a result"""

Key = Annotated[str, Header(alias="Idempotency-Key", max_length=200)]


@router.post(
    "/kernels/{session}/execute",
    response_model=ExecutionResultModel,
    responses=RESPONSES,
    summary="Run code and wait for its result",
)
async def execute(
    request: Request, session: str, wanted: ExecuteRequest, _: Run, chars: TextLength, key: Key = ""
) -> Response:
    """Run code in a session. Code that fails has a result, too."""
    return await result_response(request, session, await run(request, session, wanted, key=key), chars)


@router.post(
    "/sessions/{session}/execute",
    response_model=ExecutionResultModel,
    responses=RESPONSES,
    summary="Run code in a session",
)
async def execute_in_named(
    request: Request, session: str, wanted: ExecuteRequest, caller: Run, chars: TextLength, key: Key = ""
) -> Response:
    """Run code in the session of this name, and create it if it is missing."""
    try:
        result = await run(request, session, wanted, key=key)
    except NotFoundError:
        await create(request, caller, session)
        result = await run(request, session, wanted, key=key)
    return await result_response(request, session, result, chars)


@router.post(
    "/kernels/{session}/execute/retry",
    response_model=ExecutionResultModel,
    responses=RESPONSES,
    summary="Run code until it succeeds",
)
async def execute_with_retry(
    request: Request, session: str, wanted: RetryExecuteRequest, _: Run, chars: TextLength
) -> Response:
    """Run code, and its replacements while it fails."""
    attempts: list[dict[str, Any]] = []
    code, most = wanted.code, wanted.max_attempts or settings_of(request).max_retries
    for number in range(1, most + 1):
        result = unpack(await run(request, session, wanted.model_copy(update={"code": code}), retry=True))
        shown = {name: result[name] for name in ("status", "output", "stderr", "error")}
        attempts.append({"attempt": number, "code": code, **shown})
        if result["status"] == "success":
            break
        if number <= len(wanted.replacement_codes):
            code = wanted.replacement_codes[number - 1]
    else:
        result = {**result, "status": "max_attempts_exceeded"}
    return await result_response(request, session, pack({**result, "attempts": attempts}), chars)


router.add_api_route(
    "/kernels/{session}/execute_with_retry",
    execute_with_retry,
    methods=["POST"],
    response_model=ExecutionResultModel,
    responses=RESPONSES,
    summary="The same as execute/retry",
)


@router.post(
    "/sessions/{session}/executions", status_code=202, response_model=model_of(ExecutionRecord), summary="Submit code"
)
async def submit(request: Request, session: str, wanted: SubmitRequest, _: Run, key: Key = "") -> Response:
    """Submit code, and answer at once. It runs whether or not its client stays; follow it by its id."""
    asked = Submit(
        session,
        wanted.language,
        milliseconds(request, wanted.timeout),
        key=key or wanted.key,
        live=wanted.live,
        stdin=wanted.stdin,
        silent=wanted.silent,
    )
    record = await link_of(request).call(asked, wanted.code.encode("utf-8", "surrogatepass"))
    return json_response(record, 202, {"Location": f"/executions/{record['id']}"})


@router.get(
    "/executions/{execution}/result",
    response_model=ExecutionResultModel,
    responses=RESPONSES,
    summary="Wait for the result of an execution",
)
async def result(request: Request, execution: str, _: Read, chars: TextLength) -> Response:
    """Wait until an execution has ended, and answer with its result."""
    session = (await link_of(request).call(Lookup(execution)))["session"]
    async with aclosing(link_of(request).follow(Follow(execution))) as events:
        async for event in events:
            if event["kind"] == "result":
                return await result_response(request, session, pack(event["data"]), chars)
            if event["kind"] == "failed":
                raise failure(event["data"], execution)
    raise failure({}, execution)


async def run(request: Request, session: str, wanted: ExecuteRequest, *, key: str = "", retry: bool = False) -> Packed:
    """Run code and return its result, packed: JSON data with bytes in it.

    Raises:
        OutcomeUnknownError: The daemon ended meanwhile.
        CellblockError: Any other error of the daemon.
    """
    asked = Submit(session, wanted.language, milliseconds(request, wanted.timeout), key=key, wait=True, retry=retry)
    return await link_of(request).call_packed(asked, wanted.code.encode("utf-8", "surrogatepass"))


def milliseconds(request: Request, seconds: float | None) -> int:
    """Convert a timeout to milliseconds; None means the setting."""
    if seconds is None:
        seconds = settings_of(request).execution_timeout
    return max(round(seconds * 1000), 1)


async def result_response(request: Request, session: str, packed: Packed, max_chars: int | None) -> Response:
    """Return the answer with a result.

    Output that exceeds the text for a model is in a file of the session's workspace, which the text names. No file is
    written if the caller may only read, or if writing fails.

    Args:
        request: The request.
        session: The session of the result.
        packed: The result.
        max_chars: Characters of the text for a model; None for JSON.
    """
    if max_chars is None:
        return packed_response(packed)
    text, overflow = await asyncio.to_thread(_for_model, packed, max_chars)
    if overflow is not None and not await _written(request, session, overflow):
        text = overflow.without
    return Response(text.encode("utf-8", "replace"), media_type="text/plain")


async def _written(request: Request, session: str, overflow: Overflow) -> bool:
    if not caller_of(request).may("run"):
        return False
    try:
        await link_of(request).call(WriteFile(session, overflow.path), overflow.data)
    except CellblockError:
        return False
    return True


def _for_model(packed: Packed, max_chars: int) -> tuple[str, Overflow | None]:
    return for_model(CodeExecutionResult.from_dict(unpack(packed)), secrets.token_hex(4), max_chars)
