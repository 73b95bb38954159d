"""Reads what E2B's clients send, and reports errors in the forms that they know."""

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
    """Return what the body of a request says.

    Raises:
        InvalidInputError: It is not JSON, or not what the model wants.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Web pages of others can send other types without asking.
        raise InvalidInputError("the Content-Type must be application/json")
    return parse(await request.body(), model)


def parse(body: bytes, model: type[_Model]) -> _Model:
    """Return what JSON says.

    Raises:
        InvalidInputError: It is not valid JSON, or does not fit the model.
    """
    try:
        return model.model_validate(parse_body(body or b"{}"))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        raise InvalidInputError(f"{'.'.join(map(str, first['loc']))[:200] or 'body'}: {first['msg']}") from None


def as_text(problem: Problem) -> Response:
    """Return an error in the form that the code interpreter's clients read."""
    return PlainTextResponse(problem.detail, status_of(problem))


def as_json(problem: Problem) -> Response:
    """Return an error in the form that clients of envd read."""
    status = status_of(problem)
    return Response(json.dumps({"code": status, "message": problem.detail}), status, media_type="application/json")


def status_of(problem: Problem) -> int:
    """Return the status for a problem: E2B has 400 for all errors of a request."""
    return 400 if problem.status == 422 else problem.status
