"""Requests to run code are answered before FastAPI sees them, and as FastAPI would answer them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cellblock.fronts.gateway import metrics
from cellblock.fronts.gateway.app import Gateway as Gateway_
from cellblock.fronts.gateway.app import make_app
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.guard import Guard
from gateways import Gateway

TOKEN = "the-token-of-this-run"


@pytest.fixture(scope="module")
async def app(gateway: Gateway) -> AsyncIterator[Gateway_]:
    """The application, in this process, with the daemon of the gateway."""
    made = make_app(GatewayOptions(token=TOKEN))
    async with client_of(made) as client:
        assert (await client.post("/sessions/one")).status_code == 200  # opens the connection that all tests use
    yield made
    await made.state.link.close()


def client_of(served: Any) -> httpx.AsyncClient:
    """Return a client of an application in this process."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://localhost", headers=headers)


@pytest.mark.parametrize("name", ["kernels", "sessions"])
@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (200, {"json": {"code": "1"}}),
        (200, {"json": {"code": "1"}, "headers": {"Idempotency-Key": "once"}}),
        (401, {"json": {"code": "1"}, "headers": {"Authorization": "Bearer wrong"}}),
        (422, {"json": {"code": 1}}),
        (422, {"json": {}}),
        (422, {"json": {"code": "1"}, "headers": {"Idempotency-Key": "x" * 201}}),
        (422, {"content": b"{"}),
        (422, {"content": b'{"code": "1"}', "headers": {"Content-Type": "text/plain"}}),
        (422, {}),
    ],
)
async def test_answers_are_those_of_the_application(app: Gateway_, name: str, status: int, request_: dict[str, Any]) -> None:
    slow = metrics.Meter(Guard(app.inside, GatewayOptions(token=TOKEN), None))
    found = []
    for served in (app, slow):
        async with client_of(served) as client:
            answer = await client.post(f"/{name}/one/execute", **request_)
        said = answer.json()
        found.append((answer.status_code, answer.headers["content-type"], said.get("code"), said.get("return_value")))
    assert found[0] == found[1]
    assert found[0][0] == status


@pytest.mark.slow
async def test_all_else_is_left_to_the_application(app: Gateway_) -> None:
    cases: list[tuple[str, str, int]] = [
        ("GET", "/kernels/one/execute", 405),
        ("POST", "/kernels/one/execute/", 404),
        ("POST", "/kernels//execute", 404),
        ("POST", "/nowhere/one/execute", 404),
    ]
    for method, path, status in cases:
        async with client_of(app) as client:
            assert (await client.request(method, path, json={"code": "1"})).status_code in (status, 307)


async def test_what_is_not_there_is_answered_by_what_is(app: Gateway_) -> None:
    async with client_of(app) as client:
        missing = await client.get("/kernel")
        assert missing.json()["detail"] == "there is nothing at /kernel; /docs describes the API"
        for path, allowed in (("/kernels", "DELETE, GET, POST"), ("/docs", "GET")):
            wrong = await client.put(path)
            assert set(allowed.split(", ")) <= set(wrong.headers["allow"].split(", "))
            assert wrong.json()["detail"] == f"{path} takes {wrong.headers['allow']}, and not PUT; /docs describes the API"
