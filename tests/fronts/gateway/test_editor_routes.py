"""Editors' questions, packages and tools over HTTP."""

from __future__ import annotations

import httpx
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def session(api: httpx.Client) -> None:
    """The session that the tests share."""
    api.post("/sessions/s/execute", json={"code": "value_of_mine = 1"})


def test_completion_and_inspection(api: httpx.Client) -> None:
    found = api.post("/sessions/s/complete", json={"code": "value_of_ + 1", "cursor": 9}).json()
    assert (found["matches"], found["start"], found["end"]) == (["value_of_mine"], 0, 9)
    assert "int" in api.post("/sessions/s/inspect", json={"code": "value_of_mine"}).json()["text"]
    assert api.post("/sessions/s/inspect", json={"code": "nothing"}).json() == {"text": None}
    assert api.post("/sessions/s/complete", json={"code": "a", "cursor": -2}).status_code == 422
    assert api.post("/sessions/s/complete", json={"code": "a", "cursor": 100}).status_code in (200, 422)


def test_history(api: httpx.Client) -> None:
    ran = api.get("/sessions/s/history").json()["history"]
    assert ran[0] == {"code": "value_of_mine = 1", "status": "success", "execution_count": 1, "abandoned": False}
    assert len(api.get("/sessions/s/history", params={"count": 1}).json()["history"]) == 1


def test_packages_that_do_not_exist(api: httpx.Client) -> None:
    assert api.post("/sessions/s/install", json={"requirements": []}).status_code == 422
    assert api.post("/sessions/s/install", json={"requirements": ["--upgrade"]}).json()["status"] == "error"


def test_tools_are_searched_by_the_session(api: httpx.Client) -> None:
    assert api.get("/sessions/s/tools", params={"query": 'it\'s "quoted"'}).json() == {"tools": []}
    api.post("/sessions/s/execute", json={"code": "import json; json.dumps = lambda _: '{}'"})
    lied = api.get("/sessions/s/tools")
    assert (lied.status_code, "could not look up" in lied.json()["detail"]) == (500, True)
    api.post("/kernels/s/restart")
