"""Results as answers: JSON, or the text for a language model if the URL requests it."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response

from cellblock.errors import CellblockError
from cellblock.fronts.gateway.access import caller_of, link_of
from cellblock.fronts.gateway.answers import packed_response
from cellblock.fronts.gateway.direct import MOST_CHARS, read_query
from cellblock.model import CodeExecutionResult
from cellblock.model.overflow import Overflow, for_model
from cellblock.operations.files import WriteFile
from cellblock.wire.packed import Packed, unpack

Format = Annotated[
    Literal["json", "model"],
    Query(description="`model` answers with one text for a language model, as `for_model` makes it, instead of JSON"),
]
MaxChars = Annotated[int, Query(ge=1, le=MOST_CHARS, description="characters of the text, if `format=model`")]

RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The result: as JSON, or with `format=model` as text.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}
"""The OpenAPI responses of an endpoint that answers with a result"""


def text_wanted(request: Request) -> int | None:
    """Return the requested maximum length of the text for a language model; None if JSON is requested.

    Raises:
        RequestValidationError: The query is invalid.
    """
    if not request.scope["query_string"]:  # fast path: nearly all requests have no query
        return None
    return read_query(request.query_params.get("format"), request.query_params.get("max_chars"))


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
