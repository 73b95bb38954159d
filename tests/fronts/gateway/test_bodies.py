"""Bodies of requests: read after their sender's scope is checked, and parsed within limits."""

from __future__ import annotations

import json

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.types import Message

from cellblock.errors import AccessError, InvalidInputError
from cellblock.fronts.gateway.app import _PARTS, _uploads
from cellblock.fronts.gateway.app import Gateway as Application
from cellblock.fronts.gateway.bodies import MAX_ITEMS, CheckedRoute, parse_body
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.guard import Guard


async def refuse(request: Request) -> None:
    raise AccessError("not you")


refuse.scope = "run"  # type: ignore[attr-defined]  # as `access.needs` has it


async def answer(wanted: dict[str, str], _: None = Depends(refuse)) -> None:
    raise AssertionError("the caller may not")


async def test_a_caller_without_the_scope_is_refused_before_its_body_is_read() -> None:
    router = APIRouter(route_class=CheckedRoute)
    router.add_api_route("/", answer, methods=["POST"])
    app = FastAPI()
    app.include_router(router)

    async def receive() -> Message:
        raise AssertionError("the body is read")

    async def send(message: Message) -> None:
        pass  # FastAPI answers that it failed, before it raises the error

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    with pytest.raises(AccessError, match="not you"):
        await app(scope, receive, send)


def test_every_route_with_a_body_checks_first() -> None:
    bodies = [route for part in _PARTS for route in part.router.routes if getattr(route, "body_field", None) is not None]
    assert len(bodies) > 10
    assert all(isinstance(route, CheckedRoute) for route in bodies)


def test_uploads_are_known_by_their_route(open_app: Application) -> None:
    cases: list[tuple[str, str, bool]] = [
        ("PUT", "/sessions/a/files/b/c.txt", True),
        ("POST", "/sessions/a/load", True),
        ("POST", "/sessions/load", False),
        ("POST", "/kernels/load", False),
        ("POST", "/kernels/a/load", False),
        ("POST", "/sessions/a/files/load", False),
        ("PUT", "/kernels/a/files/b", False),
        ("POST", "/sessions/a/save/load", False),
    ]
    guard = Guard(open_app.inside, GatewayOptions(), None, _uploads())
    for method, path, expected in cases:
        assert guard._is_upload({"type": "http", "method": method, "path": path, "headers": []}) is expected


def test_a_body_may_be_any_json() -> None:
    cases: list[tuple[bytes, object]] = [(b"null", None), (b"7", 7), (b'"a"', "a"), (b"[]", [])]
    for body, value in cases:
        assert parse_body(body) == value


def test_a_body_with_many_fields_is_refused_before_each_is_found_wrong() -> None:
    cases: list[object] = [{str(number): 0 for number in range(MAX_ITEMS + 1)}, {"tags": {"a": [0] * (MAX_ITEMS + 1)}}]
    for data in cases:
        with pytest.raises(InvalidInputError, match="more than 1,000 items"):
            parse_body(json.dumps(data).encode())
        assert parse_body(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}


WRONG = {
    "UTF-16": (json.dumps({"tags": {}}).encode("utf-16"), 422, "not UTF-8"),
    "a key twice": (b'{"tags": {}, "tags": {"a": "b"}}', 422, "occurs twice"),
    "NaN": (b'{"tags": NaN}', 422, "not valid JSON"),
    "nesting": (b'{"options": {"a": ' + b"[" * 200 + b"]" * 200 + b"}}", 422, "deeper than 100"),
    "values": (b'{"options": {"a": [' + b"[]," * 100_000 + b"[]]}}", 413, "more than 40,000 values"),
    "fields": (json.dumps({str(number): 0 for number in range(5000)}).encode(), 422, "more than 1,000 items"),
    "digits": (b'{"options": {"a": ' + b"9" * 5000 + b"}}", 422, "more than 4300 digits"),
}


async def test_a_refusal_names_the_limit(open_app: Application) -> None:
    """On the routes of FastAPI, and on the one that is answered directly."""
    transport = httpx.ASGITransport(open_app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for body, status, said in WRONG.values():
            for path in ("/sessions/load", "/sessions/a/execute"):
                answer = await client.post(path, content=body, headers={"content-type": "application/json"})
                assert answer.status_code == status, answer.text
                assert said in answer.json()["detail"]
