"""Following all sessions over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from gateways import Gateway, token

pytestmark = pytest.mark.slow


@contextmanager
def followed(api: httpx.Client, after: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    """Yield changes as they come."""
    headers = {"Last-Event-ID": after} if after else {}
    with api.stream("GET", "/events", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: "))


def until(changes: Iterator[dict[str, Any]], wanted: Any) -> dict[str, Any]:
    """Return the first change with something in it."""
    return next(change for change in changes if wanted(change))


def test_what_happens_is_followed_and_taken_up_again(api: httpx.Client) -> None:
    api.post("/sessions/one", json={"tags": {"owner": "ada"}})
    with followed(api) as changes:
        first = next(changes)
        assert first["fresh"]
        (one,) = first["sessions"]
        assert (one["name"], one["tags"], one["status"], one["execution"]) == ("one", {"owner": "ada"}, "idle", "")
        number = api.post("/sessions/one/executions", json={"code": "print('begun')\ninput()", "stdin": True}).json()["id"]
        runs = until(changes, lambda change: any(found["said"] for found in change["sessions"]))
        (one,) = runs["sessions"]
        assert (one["status"], one["execution"], one["code"], one["said"]) == ("running", number, "print('begun')", "begun\n")
        assert not runs["fresh"]
    api.post("/sessions/two")
    with followed(api, runs["position"]) as changes:
        later = until(changes, lambda change: change["sessions"])
        assert not later["fresh"]
        assert "two" in [found["name"] for found in later["sessions"]]
        api.delete("/kernels/one")
        ended = until(changes, lambda change: change["ended"])
        assert ended["ended"] == [one["kernel_id"]]
    with followed(api, "0-1") as changes:
        assert next(changes)["fresh"]


def test_a_token_for_one_session_follows_that_one(gateway: Gateway, api: httpx.Client) -> None:
    options = {"approve_shell_cmds": True}
    for name in ("mine", "other"):
        api.post(f"/sessions/{name}", json={"options": options})
        api.post(f"/sessions/{name}/executions", json={"code": "!echo hello"})
    with gateway.client(token("read", session="mine")) as mine, followed(mine) as changes:
        seen = [next(changes)]
        while not seen[-1]["approvals"]:
            seen.append(next(changes))
    assert {one["name"] for change in seen for one in change["sessions"]} == {"mine"}
    assert {one["session_name"] for change in seen for one in change["approvals"]} == {"mine"}
    assert not any(change["samples"] for change in seen)
    assert "other" not in json.dumps(seen)


def test_cells_are_listed_with_those_that_were_undone(api: httpx.Client) -> None:
    api.post("/sessions/tree")
    for code in ("x = 1", "x = 2", "x = 3"):
        api.post("/kernels/tree/execute", json={"code": code})
    assert api.post("/sessions/tree/undo", json={"count": 1}).status_code == 200
    api.post("/sessions/tree/fork", json={"names": ["limb"]})
    api.post("/kernels/limb/execute", json={"code": "x = 4"})
    cells = api.get("/sessions/tree/cells").json()["cells"]
    assert [(one["code"], one["abandoned"], one["status"]) for one in cells] == [
        ("x = 1", False, "success"), ("x = 2", False, "success"), ("x = 3", True, "success"),
    ]  # fmt: skip
    limb = api.get("/sessions/limb/cells").json()["cells"]
    assert [one["code"] for one in limb] == ["x = 1", "x = 2", "x = 4"]
    assert [one["after"] for one in limb] == ["", *(one["id"] for one in limb[:2])]
    assert [one["id"] for one in limb[:2]] == [one["id"] for one in cells[:2]]
    record = api.get("/kernels/limb").json()["kernel"]
    assert (record["branch_of"], record["branch_at"]) == (cells[0]["session"], 2)
    before, after = (one["id"] for one in api.get("/sessions/tree/checkpoints").json()["checkpoints"][-2:])
    changes = api.get(f"/sessions/tree/checkpoints/{before}/diff", params={"until": after}).json()["variables"]
    assert [one["after"]["preview"] for one in changes["changed"]] == ["2"]


def test_cells_tell_after_which_one_they_ran(api: httpx.Client) -> None:
    api.post("/sessions/lines")

    def run(code: str) -> None:
        api.post("/kernels/lines/execute", json={"code": code})

    def undo(count: int) -> None:
        assert api.post("/sessions/lines/undo", json={"count": count}).status_code == 200

    for code in ("x = 1", "x = 2", "x = 3"):
        run(code)
    undo(1)
    run("x = 4")
    undo(2)
    for code in ("x = 5", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "x = 6"):
        run(code)
    cells = api.get("/sessions/lines/cells").json()["cells"]
    codes = {one["id"]: one["code"][-5:] for one in cells} | {"": ""}
    assert [(codes[one["id"]], codes[one["after"]], one["abandoned"]) for one in cells] == [
        ("x = 1", "", False), ("x = 2", "x = 1", True), ("x = 3", "x = 2", True), ("x = 4", "x = 2", True),
        ("x = 5", "x = 1", False), ("KILL)", "x = 5", True), ("x = 6", "x = 5", False),
    ]  # fmt: skip
    api.post("/kernels/lines/restart")
    run("x = 7")
    last = api.get("/sessions/lines/cells").json()["cells"][-1]
    assert (last["code"], last["after"]) == ("x = 7", "")


def test_searches_show_ended_sessions_but_not_those_of_others(gateway: Gateway, api: httpx.Client) -> None:
    number = api.post("/sessions/mine").json()["kernel_id"]
    api.post("/kernels/mine/execute", json={"code": "needle = 1"})
    api.delete("/kernels/mine")
    api.post("/sessions/mine")
    api.post("/kernels/mine/execute", json={"code": "needle = 2"})
    found = api.get("/sessions", params={"words": "needle"}).json()["sessions"]
    assert [(one["code"], one["ended"] is None) for one in found] == [("needle = 2", True), ("needle = 1", False)]
    assert [one["code"] for one in api.get(f"/sessions/{number}/cells").json()["cells"]] == ["needle = 1"]
    assert api.get(f"/sessions/{number}/decisions").json()["decisions"] == []
    assert api.get("/sessions/mine/requests").json() == {"requests": []}
    assert api.get("/sessions/mine/secrets").json() == {"secrets": []}
    with gateway.client(token("read", session="mine")) as mine:
        assert [one["code"] for one in mine.get("/sessions").json()["sessions"]] == ["needle = 2"]
        assert mine.get(f"/sessions/{number}/cells").status_code == 403
    assert api.get("/sessions", params={"words": "a b c d e f g h i"}).status_code == 422


def test_decisions_and_refusals_are_listed(api: httpx.Client) -> None:
    api.delete("/kernels")
    api.post("/sessions/asks", json={"options": {"approve_shell_cmds": True}})
    with followed(api) as changes:
        number = api.post("/sessions/asks/executions", json={"code": "!echo hello"}).json()["id"]
        (pending,) = until(changes, lambda change: change["approvals"])["approvals"]
        api.post("/approvals", json={"ids": [pending["id"]], "allow": False, "reason": "not today"})
        seen: dict[str, list[Any]] = {"decided": [], "refusals": []}
        while not (seen["decided"] and seen["refusals"]):
            change = next(changes)
            for name, found in seen.items():
                found += change[name]
    assert seen["decided"] == [pending["id"]]
    assert seen["refusals"][0]["kind"] == "call"
    assert "not today" in seen["refusals"][0]["why"]
    assert "not today" in api.get(f"/executions/{number}/result").text
    (decision,) = api.get("/sessions/asks/decisions").json()["decisions"]
    assert (decision["outcome"], decision["by"], decision["reason"]) == ("deny", "person: test", "rejected: not today")
