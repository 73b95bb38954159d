"""Reads request bodies: the caller is checked first, and JSON is parsed within limits."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from cellblock.errors import InvalidInputError
from cellblock.fronts.gateway.guard import Refused
from cellblock.fronts.problems import Problem
from cellblock.model.untrusted import parse_json

MAX_ITEMS = 1000
"""Maximum items of one list or object in a body: validation reports each that is wrong, which takes longer than parsing it."""


class CheckedRoute(APIRoute):
    """A route that checks the scope of its caller before it reads the body.

    FastAPI reads and parses the body first, so any caller could make it parse a body that it then refuses.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer
        checks = [one.call for one in self.dependant.dependencies if hasattr(one.call, "scope")]

        async def checked(request: Request) -> Response:
            for check in checks:
                assert check is not None
                await check(request)
            return await answer(_BodyRequest(request.scope, request.receive))

        return checked


class _BodyRequest(Request):
    async def json(self) -> Any:
        """Return the parsed body.

        Raises:
            Refused: The body is invalid: FastAPI passes this on.
        """
        try:
            return parse_body(await self.body())
        except InvalidInputError as error:
            wrong = {"where": "body", "what": str(error)}
            problem = Problem(422, "invalid_input", f"body: {error}", details={"errors": [wrong]})
            raise Refused(problem) from None


def parse_body(body: bytes) -> Any:
    """Parse the body of a request, whose values the guard has counted on arrival.

    Raises:
        InvalidInputError: The body is not valid JSON, or a list or an object in it has too many items.
    """
    value = parse_json(body, what="the body", counted=True)
    level = [value]
    while containers := [item for item in level if isinstance(item, (dict, list))]:
        if any(len(one) > MAX_ITEMS for one in containers):
            raise InvalidInputError(f"a list or an object in the body has more than {MAX_ITEMS:,} items")
        level = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]
    return value
