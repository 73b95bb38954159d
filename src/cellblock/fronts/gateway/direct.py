"""The fast path for `execute`, the busiest endpoint. FastAPI documents it, but does not handle its requests.

FastAPI takes more time to find a route and to resolve its arguments than the gateway needs for everything else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.gateway.access import needs, problem_for
from cellblock.fronts.gateway.answers import invalid_response, problem_response
from cellblock.fronts.gateway.bodies import parse_body
from cellblock.fronts.gateway.models import ExecuteRequest
from cellblock.model import MODEL_CHARS

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

    from cellblock.service.store.tokens import Token

MAX_KEY = 200
MOST_CHARS = 500_000

Endpoint = Callable[[Request, str, ExecuteRequest, "Token", str], Awaitable[Response]]
_Model = TypeVar("_Model", bound=BaseModel)
_may_run = needs("run")


class Direct:
    """An application that answers some requests itself, and forwards the others."""

    def __init__(self, app: FastAPI, rest: ASGIApp, endpoints: dict[str, Endpoint]) -> None:
        """Set up in front of an application.

        Args:
            app: The application, which has the same routes.
            rest: The application that answers all other requests.
            endpoints: The endpoints of ``POST /NAME/{session}/execute``, by name.
        """
        self._app = app
        self._rest = rest
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope)
        if found is None:
            await self._rest(scope, receive, send)
            return
        endpoint, session = found
        scope["app"] = self._app
        scope["path_params"] = {"session": session}
        request = Request(scope, receive)
        try:
            response = await _answer(endpoint, session, request)
        except CellblockError as error:
            response = problem_response(problem_for(request, error))
        except RequestValidationError as error:
            response = invalid_response(error, ExecuteRequest.model_fields)
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[Endpoint, str] | None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        match scope["path"].split("/"):
            case ["", name, session, "execute"] if session and name in self._endpoints:
                return self._endpoints[name], session
        return None


async def _answer(endpoint: Endpoint, session: str, request: Request) -> Response:
    caller = await _may_run(request)
    wanted = read_model(ExecuteRequest, request.headers.get("content-type", ""), await request.body())
    return await endpoint(request, session, wanted, caller, read_key(request.headers.get("idempotency-key", "")))


def read_model(model: type[_Model], media_type: str, body: bytes) -> _Model:
    """Parse a body.

    Raises:
        RequestValidationError: The body is not JSON, or does not fit the model.
    """
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise _wrong("body", "the Content-Type must be application/json")
    try:
        return model.model_validate(parse_body(body))
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None
    except InvalidInputError as error:
        raise _wrong("body", str(error)) from None


def read_key(text: str) -> str:
    """Return an idempotency key.

    Raises:
        RequestValidationError: The key is too long.
    """
    if len(text) > MAX_KEY:
        raise _wrong("header", f"an Idempotency-Key has at most {MAX_KEY} characters")
    return text


def read_query(format_: str | None, max_chars: str | None) -> int | None:
    """Return the maximum length of the text for a language model; None if JSON is requested.

    Args:
        format_: The value of ``format`` in the query, if any.
        max_chars: The value of ``max_chars`` in the query, if any.

    Raises:
        RequestValidationError: The format or the length is invalid.
    """
    if format_ not in (None, "json", "model"):
        raise _wrong("query", f"format is json or model, not {format_[:40]!r}")
    if max_chars is not None and not (max_chars.isdecimal() and 1 <= int(max_chars[:7]) <= MOST_CHARS):
        raise _wrong("query", f"max_chars is a number from 1 to {MOST_CHARS:,}, not {max_chars[:40]!r}")
    if format_ != "model":
        return None
    return MODEL_CHARS if max_chars is None else int(max_chars[:7])


def _wrong(place: str, what: str) -> RequestValidationError:
    return RequestValidationError([{"type": "value_error", "loc": (place,), "msg": what, "input": None}])
