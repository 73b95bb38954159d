"""The Connect protocol, which E2B's clients use for envd: JSON over HTTP, as one message or a stream."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.responses import Response
from starlette.routing import Route

from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.e2b import file_routes
from cellblock.fronts.e2b.answers import parse
from cellblock.fronts.gateway.answers import Attended
from cellblock.fronts.problems import Problem, problem_of

if TYPE_CHECKING:
    from starlette.requests import Request

_UNARY, _STREAM = "application/json", "application/connect+json"
_HEAD = struct.Struct(">BI")
"""The header of each message of a stream: flags, and the length."""

_LAST = 0b10
"""The flag of the last message of a stream, which says how it ended."""

_CODES = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "already_exists",
    413: "resource_exhausted",
    422: "invalid_argument",
    429: "resource_exhausted",
    501: "unimplemented",
    503: "unavailable",
    507: "resource_exhausted",
}
"""Status of a problem → Connect's code; ``internal`` for all others."""

_OWN_CODES = {"deadline": "deadline_exceeded", "state": "failed_precondition"}
"""Code of a problem → Connect's code, where the status does not tell it."""

_STATUS = {
    "failed_precondition": 400,
    "deadline_exceeded": 504,
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "resource_exhausted": 429,
    "unimplemented": 501,
    "unavailable": 503,
}


Messages = AsyncGenerator[dict[str, Any], None]
"""The messages of a stream, as they come."""

_DIGITS = 10  # defined by the protocol
_PAUSE = 90.0


class DeadlineError(CellblockError):
    """An operation exceeded the client's time limit."""


class Message(BaseModel):
    """A message from a client. Names follow Protobuf's JSON; omitted fields have their defaults."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


_MessageT = TypeVar("_MessageT", bound=Message)


def unary(path: str, model: type[_MessageT], answer: Callable[[Request, _MessageT], Awaitable[dict[str, Any]]]) -> Route:
    """Return the route of a method with one request message and one answer."""

    async def endpoint(request: Request) -> Response:
        try:
            _check_type(request, _UNARY)
            return _json(await answer(request, parse(await request.body(), model)))
        except CellblockError as error:
            return failed(problem_of(error))

    return Route(path, endpoint, methods=["POST"])


def stream(path: str, model: type[_MessageT], answer: Callable[[Request, _MessageT], Awaitable[Messages]]) -> Route:
    """Return the route of a method with one request message and a stream of answers."""

    async def endpoint(request: Request) -> Response:
        try:
            _check_type(request, _STREAM)
            body = await request.body()
            if len(body) < _HEAD.size or _HEAD.unpack_from(body) != (0, len(body) - _HEAD.size):
                raise InvalidInputError("the body must be one message in an envelope, not compressed")
            return Attended(_enveloped(await answer(request, parse(body[_HEAD.size :], model))), _STREAM)
        except CellblockError as error:
            # Clients read the status of a stream from its last message.
            return Response(_last(problem_of(error)), media_type=_STREAM)

    return Route(path, endpoint, methods=["POST"])


def unsupported(path: str, why: str) -> Route:
    """Return the route of a method that is not supported."""

    async def endpoint(request: Request) -> Response:
        problem = Problem(501, "unsupported", why)
        if _type_of(request) == _STREAM:
            return Response(_last(problem), media_type=_STREAM)
        return failed(problem)

    return Route(path, endpoint, methods=["POST"])


async def _enveloped(messages: Messages) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a stream as they arrive, and the message that ends it."""
    problem = None
    try:
        async with aclosing(messages):
            async for message in messages:
                yield _envelope(0, message)
    except CellblockError as error:
        problem = problem_of(error)
    yield _last(problem)


def timeout_of(request: Request) -> float | None:
    """Return the client's time limit in seconds; None if it sets none.

    Raises:
        InvalidInputError: The header is invalid.
    """
    text = request.headers.get("connect-timeout-ms", "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise InvalidInputError("Connect-Timeout-Ms must be a number of milliseconds")
    return int(text) / 1000 or None


def pause_of(request: Request) -> float:
    """Return the client's limit on a stream's silence in seconds, from one to ninety."""
    text = request.headers.get("keepalive-ping-interval", "")
    return float(min(max(int(text), 1), _PAUSE)) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else _PAUSE


def check_user(request: Request) -> None:
    """Check the user of a method call (`files.check_user`).

    Raises:
        UnsupportedError: The user is not the sandbox's.
    """
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        with suppress(ValueError):
            file_routes.check_user(base64.b64decode(text).partition(b":")[0].decode())


def failed(problem: Problem) -> Response:
    error = _error(problem)
    return _json(error, _STATUS.get(error["code"], 500))


def _error(problem: Problem) -> dict[str, Any]:
    code = _OWN_CODES.get(problem.code) or _CODES.get(problem.status, "internal")
    return {"code": code, "message": problem.detail}


def _last(problem: Problem | None) -> bytes:
    return _envelope(_LAST, {} if problem is None else {"error": _error(problem)})


def _envelope(flags: int, message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return _HEAD.pack(flags, len(data)) + data


def _json(message: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(message), status, media_type=_UNARY)


def _type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_type(request: Request, wanted: str) -> None:
    if (found := _type_of(request)) != wanted:
        raise InvalidInputError(f"the Content-Type must be {wanted}, not {found[:60]!r}: only JSON is spoken here")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise InvalidInputError("the body must not be compressed")
