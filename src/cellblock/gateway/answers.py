"""How problems are answered, to requests and to WebSockets."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from fastapi import Response

from cellblock.problems import MEDIA_TYPE, Problem

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


def problem_response(problem: Problem) -> Response:
    """Return the answer that says what is wrong."""
    headers = {}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = json.dumps(problem.to_dict(), ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, problem.status, headers, MEDIA_TYPE)


async def send_problem(scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
    """Answer a request, or a WebSocket that is not open yet, with what is wrong."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": problem.code})
        return
    response = problem_response(problem)
    if scope["type"] == "websocket":
        await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers})
        await send({"type": "websocket.http.response.body", "body": response.body})
        return
    await response(scope, receive, send)
