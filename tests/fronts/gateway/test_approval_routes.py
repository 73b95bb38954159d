"""Deciding over HTTP about what waits."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateways import Gateway, token
from processes import eventually

pytestmark = pytest.mark.slow

OPTIONS = {"approve_shell_cmds": True}


async def waiting(api: httpx.Client, session: str) -> list[dict[str, Any]]:
    """Wait until something waits in a session, and return it."""

    def found() -> list[dict[str, Any]]:
        pending: list[dict[str, Any]] = api.get("/approvals", params={"session": session}).json()["pending"]
        return pending

    await eventually(lambda: bool(found()), 60)  # an MCP server may have to start
    return found()


@pytest.fixture(autouse=True)
def sessions(api: httpx.Client) -> None:
    """Two sessions whose commands need an approval."""
    for name in ("one", "two"):
        api.post(f"/sessions/{name}", json={"options": OPTIONS})


@pytest.mark.parametrize(("allow", "printed"), [(True, "done\n"), (False, "")])
async def test_a_command_waits_for_its_decision(api: httpx.Client, allow: bool, printed: str) -> None:
    number = api.post("/sessions/one/executions", json={"code": "!echo done"}).json()["id"]
    (pending,) = await waiting(api, "one")
    assert (pending["session_name"], pending["execution"], pending["kind"]) == ("one", number, "shell")
    assert "echo done" in pending["text"]
    body = {"ids": [pending["id"], "unknown"], "allow": allow}
    assert api.post("/approvals", json=body).json() == {"decided": [pending["id"]]}
    assert api.post("/approvals", json=body).json() == {"decided": [pending["id"]]}  # a button is pressed twice
    refused = api.post("/approvals", json={"ids": [pending["id"]], "allow": not allow})
    assert (refused.status_code, refused.json()["code"]) == (409, "state")
    assert f"the request {pending['id']} was {'allowed' if allow else 'denied'} already by test" in refused.json()["detail"]
    await eventually(lambda: api.get(f"/executions/{number}").json()["state"] == "done")
    with api.stream("GET", f"/executions/{number}/events") as answer:
        events = answer.read().decode()
    assert ("done\\n" in events) is bool(printed)
    assert api.get("/approvals").json() == {"pending": []}


async def test_who_may_decide(gateway: Gateway, api: httpx.Client) -> None:
    number = api.post("/sessions/one/executions", json={"code": "!echo done"}).json()["id"]
    (pending,) = await waiting(api, "one")
    body = {"ids": [pending["id"]], "allow": True}
    for scopes, session in ((("run",), ""), (("read",), ""), (("run",), "one")):
        with gateway.client(token(*scopes, session=session)) as weak:
            assert weak.get("/approvals").json() == {"pending": [pending]}
            assert weak.post("/approvals", json=body).status_code == 403
    with gateway.client(token("approve", session="two")) as foreign:
        assert foreign.get("/approvals").json() == {"pending": []}
        assert foreign.get("/approvals", params={"session": "one"}).json() == {"pending": []}
        assert foreign.post("/approvals", json=body).json() == {"decided": []}
    with gateway.client(token("approve", session="one")) as own:
        assert own.post("/approvals", json=body).json() == {"decided": [pending["id"]]}
        assert own.post("/approvals", json=body).json() == {"decided": [pending["id"]]}
        assert own.post("/approvals", json={**body, "allow": False}).status_code == 409
        assert own.post("/kernels/one/execute", json={"code": "1"}).status_code == 403
    with gateway.client(token("approve", session="two")) as foreign:  # nor is it told how the request has ended
        for allow in (True, False):
            assert foreign.post("/approvals", json={**body, "allow": allow}).json() == {"decided": []}
    await eventually(lambda: api.get(f"/executions/{number}").json()["state"] == "done")


@pytest.mark.parametrize("body", [{"ids": [], "allow": True}, {"ids": ["a"]}, {"ids": ["a"], "allow": True, "always": "x"}])
def test_what_is_wrong_decides_nothing(api: httpx.Client, body: dict[str, object]) -> None:
    assert api.post("/approvals", json=body).status_code == 422
