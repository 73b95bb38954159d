"""E2B's contexts, which are named sessions."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import cellblock
from cellblock.errors import InvalidInputError, UnsupportedError
from cellblock.fronts.e2b.contexts import Workspace, kernel_for
from fronts.e2b.conftest import run, texts
from gateways import Gateway, own_gateway


def make(api: httpx.Client, **wanted: str) -> dict[str, str]:
    """Make a context."""
    answer = api.post("/contexts", json=wanted)
    assert answer.status_code == 200, answer.text
    found: dict[str, str] = answer.json()
    return found


@pytest.mark.slow
def test_a_context_has_variables_of_its_own_and_shares_files(api: httpx.Client) -> None:
    context = make(api)
    assert (context["language"], context["cwd"]) == ("python", "/home/user")
    run(api, "x = 1\nopen('shared.txt', 'w').write('shared')")
    run(api, "x = 2", context_id=context["id"])
    assert run(api, "x")[-1]["text"] == "1"
    assert run(api, "x, open('shared.txt').read()", context_id=context["id"])[-1]["text"] == "(2, 'shared')"


@pytest.mark.slow
def test_contexts_are_listed_restarted_and_removed(api: httpx.Client) -> None:
    first, second = make(api), make(api, cwd="/tmp", language="PYTHON")
    listed = api.get("/contexts").json()
    assert [one["language"] for one in listed[:2]] == ["python", "javascript"]
    assert listed[-2:] == [first, second]
    run(api, "x = 1", context_id=second["id"])
    assert api.post(f"/contexts/{second['id']}/restart").status_code == 200
    assert run(api, "x", context_id=second["id"])[-1]["name"] == "NameError"
    assert run(api, "import os\nos.getcwd()", context_id=second["id"])[-1]["text"] == "/tmp"
    assert api.delete(f"/contexts/{second['id']}").status_code == 200
    assert second not in api.get("/contexts").json()
    for answer in (
        api.delete(f"/contexts/{second['id']}"),
        api.post(f"/contexts/{second['id']}/restart"),
        api.post("/execute", json={"code": "1", "context_id": second["id"]}),
    ):
        assert (answer.status_code, answer.text) == (404, f"Context {second['id']} not found")


@pytest.mark.slow
def test_the_default_contexts_can_be_named_and_come_back(api: httpx.Client) -> None:
    python, javascript = (one["id"] for one in api.get("/contexts").json()[:2])
    run(api, "y = 1")
    assert run(api, "y", context_id=python)[-1]["text"] == "1"
    assert run(api, "y", language="python")[-1]["text"] == "1"
    assert api.delete(f"/contexts/{python}").status_code == 200
    assert run(api, "y")[-1]["name"] == "NameError"
    assert api.post(f"/contexts/{javascript}/restart").status_code == 501


@pytest.mark.slow
def test_a_directory_that_cannot_be_entered_is_not_where_the_context_says_it_is(api: httpx.Client) -> None:
    context = make(api, cwd="/nowhere")
    assert context["cwd"] == "/home/user"
    assert texts(run(api, "!pwd", context_id=context["id"])) == "/home/user\n"
    assert context in api.get("/contexts").json()


def test_other_sessions_of_the_user_are_nobodys_business(api: httpx.Client) -> None:
    other = cellblock.get_or_create("private")
    cellblock.execute(other, "secret = 1")
    for name in ("private", other.kernel_id, "e2b-private", f"{api.get('/contexts').json()[0]['id']}/../private"):
        assert api.post("/execute", json={"code": "secret", "context_id": name}).status_code == 404
        assert api.delete(f"/contexts/{name}").status_code == 404
    assert {one["id"] for one in api.get("/contexts").json()}.isdisjoint({"private", other.kernel_id})
    assert cellblock.execute(other, "secret").return_value == "1"


@pytest.mark.slow
def test_contexts_are_sessions_and_outlive_the_server(api: httpx.Client, server: Gateway) -> None:
    context = make(api)
    run(api, "x = 5", context_id=context["id"])
    assert cellblock.execute(context["id"], "x").return_value == "5"
    with own_gateway("e2b") as next_one, next_one.client() as client:
        assert context in client.get("/contexts").json()
        assert run(client, "x", context_id=context["id"])[-1]["text"] == "5"


@pytest.mark.slow
def test_another_workspace_is_another_sandbox(api: httpx.Client, tmp_path: Path) -> None:
    context = make(api)
    with own_gateway("e2b", session_options={"working_dir": str(tmp_path)}) as other, other.client() as client:
        assert context not in client.get("/contexts").json()
        assert client.post("/execute", json={"code": "1", "context_id": context["id"]}).status_code == 404
        run(client, "open('mine.txt', 'w').close()")
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.parametrize("cwd", ["", "\0", "x" * 5000])
def test_a_directory_is_a_path(api: httpx.Client, cwd: str) -> None:
    assert api.post("/contexts", json={"cwd": cwd}).status_code == 400


def test_languages_are_those_of_installed_kernels(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "for 'r'" in api.post("/contexts", json={"language": "r"}).text
    assert api.post("/contexts", json={"language": "bash"}).status_code == 501  # it is no kernel, here
    specs = {"python3": {"language": "python"}, "deno": {"language": "typescript"}, "ir": {"language": "R"}}
    monkeypatch.setattr("cellblock.fronts.e2b.contexts.installed", lambda _: specs)
    wanted = {"python": "python3", "bash": "python3", "javascript": "deno", "typescript": "deno", "r": "ir"}
    assert {language: kernel_for(language) for language in wanted} == wanted
    with pytest.raises(UnsupportedError, match="no Jupyter kernel for 'java'"):
        kernel_for("java")


def test_paths_are_those_of_the_workspace_by_both_of_its_names() -> None:
    workspace = Workspace("/srv/place", "/home/user", {})
    for path, inner in (
        ("a.txt", "a.txt"),
        ("/home/user/a/b", "a/b"),
        ("/srv/place/a", "a"),
        ("~", "."),
        ("~/a", "a"),
        ("./a//b/../c/", "a/c"),
        ("/home/user", "."),
        ("//home/user/a", "a"),
        ("/", "/"),
        ("..", "/home"),
        ("/etc/passwd", "/etc/passwd"),
        ("/home/user/../x", "/home/x"),
        ("/home/users", "/home/users"),
        ("/srv/place2", "/srv/place2"),
        ("~x/../../..", "/"),
    ):
        assert workspace.inner(path) == inner, path
    assert workspace.outer("a/b") == "/home/user/a/b"
    assert workspace.outer(".") == "/home/user"
    assert workspace.outer("/tmp/a") == "/tmp/a"
    for path in ("", "a\0", "x" * 5000):
        with pytest.raises(InvalidInputError, match="path must be"):
            workspace.inner(path)
