"""Parses requests of E2B's clients, and reports errors in the forms that they know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.responses import PlainTextResponse, Response

from cellblock.errors import InvalidInputError
from cellblock.fronts.gateway.bodies import parse_body
from cellblock.fronts.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

_Model = TypeVar("_Model", bound=BaseModel)


async def read(request: Request, model: type[_Model]) -> _Model:
    """Parse the body of a request.

    Raises:
        InvalidInputError: The body is not JSON, or does not fit the model.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Web pages of other origins can send other types without asking.
        raise InvalidInputError("the Content-Type must be application/json")
    return parse(await request.body(), model)


def parse(body: bytes, model: type[_Model]) -> _Model:
    """Parse JSON.

    Raises:
        InvalidInputError: The data is not valid JSON, or does not fit the model.
    """
    try:
        return model.model_validate(parse_body(body or b"{}"))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        raise InvalidInputError(f"{'.'.join(map(str, first['loc']))[:200] or 'body'}: {first['msg']}") from None


def as_text(problem: Problem) -> Response:
    """Return an error in the form of the code interpreter's clients."""
    return PlainTextResponse(problem.detail, status_of(problem))


def as_json(problem: Problem) -> Response:
    """Return an error in the form of envd's clients."""
    status = status_of(problem)
    return Response(json.dumps({"code": status, "message": problem.detail}), status, media_type="application/json")


def status_of(problem: Problem) -> int:
    """Return the status for a problem: E2B uses 400 for all errors of a request."""
    return 400 if problem.status == 422 else problem.status
