"""The encoding of answers: results as JSON, and problems.

A result can contain megabytes of pictures and pages. It is then written piece by piece, so that other requests get their
turn.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from cellblock.common.tasks import first_of
from cellblock.fronts.problems import MEDIA_TYPE, Problem
from cellblock.wire.packed import Packed, plain_json, unpack

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_T = TypeVar("_T")

_PIECE = 96 * 1024
"""Characters or bytes that are written at once; divisible by three, for base64."""

_SHOWN = 200
"""Characters of a field's name that an answer repeats."""

_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=lambda value: base64.b64encode(value).decode("ascii")
).encode


def json_bytes(data: Any) -> bytes:
    """Encode JSON data. Bytes become base64; lone surrogates become ``?``."""
    return _encode(data).encode("utf-8", "replace")


def json_response(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    if weight(data) < 2 * _PIECE:
        return Response(json_bytes(data), status, headers, "application/json")
    return StreamingResponse(in_turns(json_pieces(data)), status, headers, "application/json")


def packed_response(packed: Packed) -> Response:
    """Return an answer with packed JSON data. Most results are plain JSON, which is sent unchanged."""
    text = plain_json(packed)
    if text is None:
        return json_response(unpack(packed))
    if len(text) < 2 * _PIECE:
        return Response(text, media_type="application/json")
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return StreamingResponse(in_turns(pieces), media_type="application/json")


class Attended(StreamingResponse):
    """A response whose parts are sent as they arrive. If the client leaves, their source is closed."""

    def __init__(self, parts: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(parts, media_type=media_type)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._parts):
            with suppress(ClientDisconnect):
                await while_there(receive, self.stream_response(send))


async def in_turns(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces, and let other tasks run after each."""
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


def weight(data: Any) -> int:
    """Return the approximate number of characters and bytes in JSON data."""
    kind = type(data)
    if kind is str or kind is bytes:
        return len(data)
    if kind is dict:
        return sum(map(weight, data.values())) + 8 * len(data)
    if kind is list or kind is tuple:
        return sum(map(weight, data)) + 8 * len(data)
    return 8


def json_pieces(data: Any) -> Iterator[bytes]:
    """Yield the output of `json_bytes` in pieces that are produced quickly."""
    kind = type(data)
    if weight(data) < _PIECE:
        yield json_bytes(data)
    elif kind is str:
        yield b'"'
        for start in range(0, len(data), _PIECE):
            yield _encode(data[start : start + _PIECE])[1:-1].encode("utf-8", "replace")
        yield b'"'
    elif kind is bytes:
        yield b'"'
        for start in range(0, len(data), _PIECE):
            yield base64.b64encode(data[start : start + _PIECE])
        yield b'"'
    elif kind is dict:
        opening = b"{"
        for name, value in data.items():
            yield opening + json_bytes(name) + b":"
            yield from json_pieces(value)
            opening = b","
        yield b"}"
    else:
        opening = b"["
        for value in data:
            yield opening
            yield from json_pieces(value)
            opening = b","
        yield b"]"


def problem_response(problem: Problem) -> Response:
    headers = {}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(json_bytes(problem.to_dict()), problem.status, headers, MEDIA_TYPE)


def invalid_response(error: RequestValidationError, fields: Iterable[str] = ()) -> Response:
    """Return the answer for an invalid request.

    Args:
        error: The validation error.
        fields: The fields that the body may have.
    """
    found = error.errors()[:20]
    wrong = [{"where": ".".join(map(str, one["loc"]))[:_SHOWN], "what": _explained(one, fields)} for one in found]
    detail = "; ".join(f"{one['where']}: {one['what']}" for one in wrong[:3])
    return problem_response(Problem(422, "invalid_input", detail, details={"errors": wrong}))


def _explained(one: Any, fields: Iterable[str]) -> str:
    """Explain one validation error; for an unknown field, suggest a similar one."""
    if one["type"] != "extra_forbidden":
        return str(one["msg"])
    near = difflib.get_close_matches(str(one["loc"][-1])[:_SHOWN], fields, 1)
    return "there is no such field" + (f"; did you mean {near[0]!r}?" if near else "")


async def send_problem(scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
    """Answer a request, or a WebSocket that is not open yet, with a problem."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": problem.code})
        return
    response = problem_response(problem)
    if scope["type"] == "websocket":
        await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers})
        await send({"type": "websocket.http.response.body", "body": response.body})
        return
    await response(scope, receive, send)


async def while_there(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Await a coroutine for a client, and cancel it if the client leaves.

    Args:
        receive: Reports when the client leaves; the request is already complete.
        work: The coroutine.

    Raises:
        ClientDisconnect: The client has left. The coroutine was cancelled, and has ended.
    """
    working, _ = await first_of(work, _left(receive))
    if working.cancelled():
        raise ClientDisconnect
    result: _T = working.result()
    return result


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
