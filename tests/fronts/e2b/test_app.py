"""Who may talk to the server for E2B's clients, and what it does not serve."""

from __future__ import annotations

import base64
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from cellblock.errors import AccessError, InvalidInputError
from cellblock.fronts.e2b.app import allowed
from cellblock.fronts.e2b.serve import HOME, serve, workspace_for
from cellblock.service.store.tokens import Scope, Token, Tokens
from fronts.e2b.conftest import run
from fronts.e2b.test_processes import STREAM, bash, envelope
from gateways import Gateway, own_gateway, token
from processes import eventually

REQUESTS = (
    ("POST", "/execute"),
    ("POST", "/contexts"),
    ("GET", "/contexts"),
    ("DELETE", "/contexts/x"),
    ("POST", "/contexts/x/restart"),
    ("GET", "/files"),
    ("POST", "/files"),
    ("POST", "/filesystem.Filesystem/ListDir"),
    ("POST", "/process.Process/Start"),
    ("POST", "/nowhere"),
)


@pytest.fixture(scope="module")
def public(server: Gateway) -> Iterator[str]:
    """The address of a server that listens beyond this machine."""
    with own_gateway("e2b", host="0.0.0.0") as made:
        yield f"http://127.0.0.1:{made.port}"


@pytest.mark.slow
def test_it_says_that_it_runs(api: httpx.Client) -> None:
    answer = api.get("/health")
    assert (answer.status_code, answer.json()) == (200, "OK")


def test_web_pages_and_rebound_names_are_refused_whatever_they_ask_for(api: httpx.Client) -> None:
    for method, path in REQUESTS:
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Host": "evil.example:49999"}, 421),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
        ):
            answer = api.request(method, path, headers=headers, json={"code": "1"} if method == "POST" else None)
            assert answer.status_code == status, (headers, answer.text)


@pytest.mark.parametrize("path", [path for method, path in REQUESTS if method == "POST" and path != "/nowhere"])
def test_forms_and_texts_that_pages_can_send_unasked_are_refused(api: httpx.Client, path: str) -> None:
    """Also by a browser that sends no Origin. Only ``/files`` takes forms."""
    if path in ("/files", "/contexts/x/restart"):
        return
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = api.post(path, content=b'{"code": "1"}', headers={"Content-Type": kind})
        assert "Content-Type must be" in answer.text
        assert answer.status_code == (200 if path.endswith("Start") else 400)  # the status of a stream is in its last message


@pytest.mark.slow
def test_bodies_are_limited(server: Gateway) -> None:
    with own_gateway("e2b", max_body=100_000) as made, made.client() as client:
        assert client.post("/execute", json={"code": "#" * 100_001}).status_code == 413
    with server.client() as client:
        many = b'{"code": "1", "more": [' + b"0," * 60_000 + b"0]}"
        answer = client.post("/execute", content=many, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        answer = client.post("/filesystem.Filesystem/Stat", content=many, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413


def test_what_is_not_served_is_named(api: httpx.Client) -> None:
    answer = api.get("/nowhere")
    assert (answer.status_code, "a part of E2B's protocol" in answer.text) == (404, True)
    assert api.get("/execute").status_code == 405


@pytest.mark.slow
def test_beyond_this_machine_a_token_is_asked_for(public: str) -> None:
    with httpx.Client(base_url=public, timeout=60, verify=False) as client:
        assert client.get("/health").status_code == 200
        for method, path in REQUESTS:
            assert client.request(method, path).status_code == 401, path
            assert client.request(method, path, headers={"X-Access-Token": "cb_wrong"}).status_code == 401, path
    run_token = token("run")
    for headers in ({"X-Access-Token": run_token}, {"Authorization": f"Bearer {run_token}"}):
        with httpx.Client(base_url=public, timeout=60, verify=False, headers=headers) as client:
            assert run(client, "6 * 7")[-1]["text"] == "42"
    with httpx.Client(base_url=public, timeout=60, verify=False, headers={"X-Access-Token": token("read")}) as client:
        assert client.post("/execute", json={"code": "1"}).status_code == 403


async def test_tokens_that_may_only_look_run_nothing() -> None:
    """A token for one session is none for the sandbox, either: it has several."""
    reached: list[str] = []

    async def app(scope: Any, *_: Any) -> None:
        reached.append(scope["path"])

    callers: list[tuple[Scope, str]] = [("read", ""), ("run", "x"), ("approve", "")]
    for scope, session in callers:
        caller = Token("1", "test", frozenset([scope]), session)
        for path in ("/health", *(path for _, path in REQUESTS)):
            with nullcontext() if path == "/health" else pytest.raises(AccessError, match="the scope 'run', for all sessions"):
                await allowed(app)({"type": "http", "path": path, "cellblock.caller": caller}, Any, Any)  # type: ignore[arg-type]
    assert reached == ["/health"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["code", "program"])
def test_a_stream_ends_with_its_token(public: str, kind: str) -> None:
    """It breaks off, so that it does not seem whole."""
    secret, made = Tokens().create("test", ("run",))
    options: dict[str, Any] = {"json": {"code": "import time\nprint('begun', flush=True)\ntime.sleep(100)"}}
    if kind == "program":
        options = {"content": envelope(bash("echo begun; sleep 100")), "headers": {"Content-Type": STREAM}}
    path = "/execute" if kind == "code" else "/process.Process/Start"
    with httpx.Client(base_url=public, timeout=60, verify=False, headers={"X-Access-Token": secret}) as client:
        with client.stream("POST", path, **options) as stream:
            pieces = stream.iter_bytes()
            said = next(pieces)
            while b"begun" not in said and base64.b64encode(b"begun\n") not in said:
                said += next(pieces)
            Tokens().revoke(made.id)
            revoked = time.monotonic()
            with pytest.raises(httpx.RemoteProtocolError):
                list(pieces)
        assert time.monotonic() - revoked < 10  # within a second, and the machine may be busy
        assert client.request("POST", path, **options).status_code == 401


def test_the_workspace_has_the_name_that_programs_know_where_the_sandbox_can_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert workspace_for({}).home == HOME
    assert workspace_for({}).options["home_is_workspace"] is True
    (link := tmp_path / "link").symlink_to(tmp_path)
    assert workspace_for({"working_dir": str(link)}).path == str(tmp_path)
    unlike: list[dict[str, Any]] = [{"isolate": "landlock"}, {"sandbox": False}, {"sandbox_config": {}}]
    for given in unlike:
        found = workspace_for(given)
        assert (found.home, found.options.get("home_is_workspace")) == (str(tmp_path), None)
    assert workspace_for({"working_dir": "/home/user/project"}).home == "/home/user/project"


@pytest.mark.slow
async def test_the_command_serves_with_the_options_of_sessions(server: Gateway, tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    with open(log := tmp_path / "log", "wb") as file:
        command = ("serve", "--e2b", "--port", "0", "--workspace", str(place), "-o", 'kernel_env={"A": "given"}')
        process = subprocess.Popen([sys.executable, "-m", "cellblock", *command], stderr=file)
        try:
            await eventually(lambda: b"listens at" in log.read_bytes(), 60)
            found = re.search(r"listens at (\S+) for programs that use E2B", log.read_text())
            assert found is not None
            with httpx.Client(base_url=found[1], timeout=60, verify=False) as client:
                assert run(client, "import os\nopen('made', 'w').close()\nos.environ['A']")[-1]["text"] == "given"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    assert (place / "made").exists()
    assert "No token is required" in log.read_text()


def test_a_port_that_is_taken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InvalidInputError, match="another program listens"):
        serve("127.0.0.1", 0, taken.getsockname()[1])
