"""Making, finding and ending sessions over HTTP: the endpoints of KernelBox, with its fields and statuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx
import pytest

from cellblock.errors import InvalidInputError
from cellblock.fronts.gateway.session_routes import workspace_in
from gateways import Gateway, own_gateway, token

KERNELBOX = {
    "kernel_id",
    "connection_file",
    "name",
    "created_at",
    "last_used_at",
    "status",
    "session_name",
    "attempt_count",
    "tags",
}


def test_a_kernel_from_its_making_to_its_end(api: httpx.Client) -> None:
    made = api.post("/kernels", json={"name": "first", "tags": {"task": "eda"}})
    assert made.status_code == 201
    kernel = made.json()
    assert {*KERNELBOX, "age_seconds"} <= kernel.keys()
    assert (kernel["name"], kernel["session_name"], kernel["tags"]) == ("first", "first", {"task": "eda"})
    again = api.post("/kernels", json={"name": "first"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert [one["kernel_id"] for one in api.get("/kernels?refresh=true").json()["kernels"]] == [kernel["kernel_id"]]
    for identifier in ("first", kernel["kernel_id"]):
        found = api.get(f"/kernels/{identifier}").json()
        assert (found["alive"], found["kernel"]["kernel_id"]) == (True, kernel["kernel_id"])
    assert api.post("/kernels/first/restart").json()["name"] == "first"
    assert api.post("/kernels/first/interrupt").json() == {"done": False}
    assert api.delete(f"/kernels/{kernel['kernel_id']}").json() == {"destroyed": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/restart"), ("POST", "/interrupt")):
        missing = api.request(method, f"/kernels/first{path}")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
        assert "first" in missing.json()["detail"]


def test_a_session_is_made_once(api: httpx.Client) -> None:
    first = api.post("/sessions/agent run@1", json={"tags": {"owner": "agent"}})
    assert first.status_code == 200
    assert api.post("/sessions/agent run@1").json()["kernel_id"] == first.json()["kernel_id"]
    assert first.json()["workspace"] == os.getcwd()
    assert first.json()["kernel_id"] in api.delete("/kernels").json()["destroyed"]
    assert api.get("/kernels").json() == {"kernels": []}


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"name": 1},
        {"tags": {"a": 1}},
        {"name": "x" * 129},
        {"name": "a/b"},
        {"name": "a", "session_name": "b"},
        [],
    ],
)
def test_what_is_wrong_is_a_problem(api: httpx.Client, body: object) -> None:
    if body == {"name": ""}:
        assert api.post("/kernels", json=body).json()["name"].startswith("session-")
        return
    answer = api.post("/kernels", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/kernels", {"tag": {"a": "b"}}, "body.tag: there is no such field; did you mean 'tags'?"),
        ("/kernels", {"sandbox": False}, "body.sandbox: there is no such field"),
        ("/sessions/free", {"option": {}}, "body.option: there is no such field; did you mean 'options'?"),
        ("/sessions/free/execute", {"code": "1", "timeut": 3}, "body.timeut: there is no such field; did you mean 'timeout'?"),
        ("/approvals", {"x" * 10_000: 1}, "there is no such field"),
    ],
)
def test_an_unknown_field_is_an_error(api: httpx.Client, path: str, body: dict[str, object], said: str) -> None:
    answer = api.post(path, json=body)
    assert (answer.status_code, said in answer.json()["detail"], len(answer.text) < 2000) == (422, True, True), answer.text
    assert api.get("/kernels/free").status_code == 404


@pytest.mark.slow
def test_options_need_all_rights(gateway: Gateway, api: httpx.Client) -> None:
    with gateway.client(token("run", "approve")) as weak:
        for path, body, options in (
            ("/kernels", {"name": "free"}, {"sandbox": False}),
            ("/sessions/free", {}, {"sandbox": False}),
            ("/sessions/free", {}, {"secrets": ["HOME=env:HOME@attacker.test"]}),
            ("/sessions/free", {}, {"secrets": ["GITHUB_TOKEN"]}),  # only entries of secrets.toml, of which there are none
        ):
            refused = weak.post(path, json=body | {"options": options})
            assert (refused.status_code, refused.json()["code"]) == (403, "access")
            assert refused.json()["detail"].endswith("the scope 'admin', which the options of a session need")
    assert api.get("/kernels/free").status_code == 404
    made = api.post("/sessions/free", json={"options": {"sandbox": False}})
    assert made.json()["isolate"] == "none"
    wrong = api.post("/sessions/other", json={"options": {"sandbx": False}})
    assert (wrong.status_code, "did you mean 'sandbox'" in wrong.json()["detail"]) == (422, True)


@pytest.mark.slow
def test_each_session_can_have_a_directory_of_its_own(gateway: Gateway, api: httpx.Client, tmp_path: Path) -> None:
    with own_gateway(workspaces=str(tmp_path / "all"), token="x" * 20) as apart, apart.client("x" * 20) as client:
        assert client.post("/sessions/one").json()["workspace"] == str(tmp_path / "all" / "session-one")
        assert client.post("/sessions/two..").json()["workspace"] == str(tmp_path / "all" / "session-two..")
        assert client.post("/kernels", json={"name": ".."}).status_code == 422
        assert client.delete("/kernels").status_code == 200
    assert sorted(os.listdir(tmp_path)) == ["all"]
    assert (tmp_path / "all" / "session-one").stat().st_mode & 0o77 == 0
    for name in (".", "..", "...", "a/b", "/", "a\0"):
        with pytest.raises(InvalidInputError):
            workspace_in(tmp_path, name)


def test_no_session_takes_the_id_of_another_as_its_name(api: httpx.Client) -> None:
    number = api.post("/sessions/one").json()["kernel_id"]
    for path in ("/kernels", f"/sessions/{number}"):
        refused = api.post(path, json={"name": number} if path == "/kernels" else {})
        assert refused.status_code == 422
        assert f"'{number}' is the id of session 'one'" in refused.json()["detail"]


def test_no_session_owns_a_name_that_means_something_to_its_siblings(tmp_path: Path) -> None:
    evil, sibling = workspace_in(tmp_path, ".git"), workspace_in(tmp_path, "sibling")
    subprocess.run(["git", "init", "-q", "--bare", evil], check=True)  # what a session can put into its directory
    subprocess.run(["git", "-C", evil, "config", "core.bare", "false"], check=True)
    subprocess.run(["git", "-C", evil, "config", "core.fsmonitor", f"touch {tmp_path / 'ran'}; false"], check=True)
    sibling.mkdir()
    subprocess.run(["git", "-C", sibling, "status"], check=False, capture_output=True)
    assert not (tmp_path / "ran").exists()
    assert evil.parent == sibling.parent == tmp_path
