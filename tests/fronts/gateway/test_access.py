"""Who may do what: every route asks, and tokens for one session are for that one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cellblock.fronts.cli import main
from cellblock.fronts.gateway.app import Gateway as Application
from cellblock.fronts.gateway.guard import PUBLIC
from gateways import Gateway, token

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def sessions(api: httpx.Client) -> None:
    """Mine and another."""
    for name in ("mine", "other"):
        api.post(f"/sessions/{name}")


@pytest.fixture
def mine(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client whose token is for one session."""
    with gateway.client(token("run", "approve", session="mine")) as client:
        yield client


def test_a_token_for_one_session_is_not_told_the_names_of_others(gateway: Gateway, api: httpx.Client) -> None:
    near = "there is no session 'mines'"
    for method, path, body in (("GET", "/kernels/mines", None), ("POST", "/kernels/mines/execute", {"code": "1"})):
        assert api.request(method, path, json=body).json()["detail"] == f"{near}; did you mean 'mine'?"
        with gateway.client(token("run", "read", session="mines")) as client:
            assert client.request(method, path, json=body).json()["detail"] == near


def test_a_token_for_one_session_is_for_that_one(mine: httpx.Client, api: httpx.Client) -> None:
    number = api.get("/kernels/mine").json()["kernel"]["kernel_id"]
    for identifier in ("mine", number):
        assert mine.get(f"/kernels/{identifier}").status_code == 200
        assert mine.post(f"/kernels/{identifier}/execute", json={"code": "1"}).json()["return_value"] == "1"
    assert mine.post("/sessions/mine").json()["kernel_id"] == number
    assert [one["name"] for one in mine.get("/kernels").json()["kernels"]] == ["mine"]
    execution = mine.post("/sessions/mine/executions", json={"code": "1"}).json()["id"]
    assert mine.get(f"/executions/{execution}/events").status_code == 200


def test_a_token_for_one_session_says_nothing_of_others(mine: httpx.Client, api: httpx.Client) -> None:
    number = api.get("/kernels/other").json()["kernel"]["kernel_id"]
    execution = api.post("/sessions/other/executions", json={"code": "1"}).json()["id"]
    code: dict[str, Any] = {"code": "1"}
    asked: list[tuple[str, str, dict[str, Any] | None]] = []
    for name in ("other", number, "unknown"):
        asked += [
            ("GET", f"/kernels/{name}", None),
            ("DELETE", f"/kernels/{name}", None),
            ("POST", f"/kernels/{name}/restart", None),
            ("POST", f"/kernels/{name}/interrupt", None),
            ("POST", f"/kernels/{name}/execute", code),
            ("POST", f"/kernels/{name}/execute/retry", code),
            ("POST", f"/sessions/{name}", None),
            ("POST", f"/sessions/{name}/execute", code),
            ("POST", f"/sessions/{name}/executions", code),
            ("GET", f"/sessions/{name}/executions", None),
            ("GET", f"/sessions/{name}/files", None),
            ("GET", f"/sessions/{name}/files/a", None),
            ("PUT", f"/sessions/{name}/files/a", None),
            ("GET", f"/sessions/{name}/history", None),
        ]
    for name in (execution, "unknown"):
        asked += [("GET", f"/executions/{name}", None), ("GET", f"/executions/{name}/events", None)]
        asked += [("POST", f"/executions/{name}/cancel", None), ("POST", f"/executions/{name}/input", {"line": "x"})]
    asked += [("POST", "/kernels", {"name": "other"}), ("POST", "/kernels", {}), ("DELETE", "/kernels", None)]
    told = {(answer.status_code, answer.json()["detail"]) for answer in (mine.request(m, p, json=b) for m, p, b in asked)}
    # All the same, whether or not there is such a session; only what no such token may do at all is told as that.
    assert {status for status, _ in told} == {403}
    assert {detail for _, detail in told} == {
        "this token is for another session",
        "this token does not have the scope 'admin'",
    }
    assert {one["name"] for one in api.get("/kernels").json()["kernels"]} == {"mine", "other"}


def test_a_token_for_one_session_makes_and_uses_no_others(mine: httpx.Client, api: httpx.Client) -> None:
    for path, body, what in (("fork", {"names": ["new"]}, "make"), ("adopt", {"branch": "other"}, "use")):
        refused = mine.post(f"/sessions/mine/{path}", json=body)
        assert (refused.status_code, refused.json()["detail"]) == (
            403,
            f"this token is for one session, and cannot {what} others",
        )
    assert {one["name"] for one in api.get("/kernels").json()["kernels"]} == {"mine", "other"}


def test_a_web_socket_of_another_session_is_refused(gateway: Gateway, api: httpx.Client) -> None:
    execution = api.post("/sessions/other/executions", json={"code": "1"}).json()["id"]
    address = f"{gateway.url.replace('http', 'ws')}/executions/{execution}/events?token={token('run', session='mine')}"
    with pytest.raises(InvalidStatus) as refused, connect(address):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("scope", "method", "path", "body"),
    [
        ("read", "POST", "/kernels/mine/execute", {"code": "1"}),
        ("read", "POST", "/sessions/mine/executions", {"code": "1"}),
        ("read", "POST", "/sessions/new", None),
        ("read", "POST", "/kernels/mine/restart", None),
        ("read", "DELETE", "/kernels/mine", None),
        ("read", "PUT", "/sessions/mine/files/a", None),
        ("read", "POST", "/approvals", {"ids": ["a"], "allow": True}),
        ("approve", "POST", "/kernels/mine/execute", {"code": "1"}),
        ("run", "POST", "/approvals", {"ids": ["a"], "allow": True}),
        ("run", "DELETE", "/kernels", None),
    ],
)
def test_scopes_are_asked_for(gateway: Gateway, scope: str, method: str, path: str, body: object) -> None:
    with gateway.client(token(scope)) as client:
        answer = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "access")


def test_no_route_forgets_to_ask(open_app: Application) -> None:
    open_routes = set()
    todo = list(open_app.routes)
    while todo:
        route = todo.pop()
        todo += getattr(getattr(route, "original_router", None), "routes", [])  # as newer releases of FastAPI include them
        if isinstance(route, APIRoute | APIWebSocketRoute):
            asks = [one.call for one in route.dependant.dependencies if hasattr(one.call, "scope")]
            if not asks:
                open_routes.add(route.path)
    # Of these, the guard wants a token for /api. Pages about the API, and the console, tell nothing about sessions.
    files = ("/console.js", "/libraries.js", "/console.css", "/icon.svg", "/figure", "/frame", "/frame-with-scripts")
    page = {f"/console{path}" for path in ("", "/login", *files)}
    assert open_routes == {"/", "/api", "/health", "/docs", "/redoc"} | page
    assert {"/", "/health"} < set(PUBLIC)


def test_a_token_for_a_session_opens_no_later_one_of_its_name(
    gateway: Gateway, api: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    api.post("/sessions/once")
    assert main(["tokens", "create", "x", "--session", "once", "--scope", "run"]) == 0
    with gateway.client(json.loads(capsys.readouterr().out)["token"]) as client:
        assert client.post("/sessions/once/execute", json={"code": "6 * 7"}).json()["return_value"] == "42"
        api.delete("/kernels/once")
        assert client.post("/sessions/once/execute", json={"code": "1"}).status_code == 403
        api.post("/sessions/once")
        for path in ("/sessions/once/execute", "/kernels/once/execute"):
            assert client.post(path, json={"code": "1"}).status_code == 403
        assert client.get("/kernels").json()["kernels"] == []
    assert main(["tokens", "create", "x", "--session", "never"]) == 1
    assert "there is no session 'never'" in capsys.readouterr().err
