"""The recipes that the other blocks of the documents do not run: FastAPI, pytest, clients of MCP, and a workflow of GitHub."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from daemons import own_daemon
from mcp_clients import PATIENT, run, text

_RECIPES = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text()
_PROGRAMS = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def block(heading: str, language: str = "py(?:thon)?") -> str:
    """Return the first block of code in a language below a heading."""
    found = re.search(rf"```{language}\n(.*?)^```", _RECIPES.partition(f"\n## {heading}\n")[2], re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_recipes_are_short() -> None:
    long = [code for code in re.findall(r"^```\w+\n(.*?)^```", _RECIPES, re.DOTALL | re.MULTILINE) if code.count("\n") > 40]
    assert long == []


@pytest.mark.slow
def test_an_application_with_fastapi_runs_code() -> None:
    from starlette.testclient import TestClient

    names: dict[str, Any] = {}
    exec(compile(block("FastAPI"), "recipes.md", "exec", dont_inherit=True), names)
    with TestClient(names["app"]) as client:
        assert client.post("/run", json={"code": "import pandas\n1 + 1"}).json()["return_value"] == "2"
        assert client.post("/run", json={"code": "open('kept', 'w').close()"}).json()["status"] == "success"
        failed = client.post("/run", json={"code": "import os\nassert not os.listdir()\n1 / 0"}).json()
        assert (failed["status"], failed["error"]["ename"]) == ("error", "ZeroDivisionError")


@pytest.mark.slow
def test_each_user_of_an_application_has_a_session_and_a_directory(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    names: dict[str, Any] = {}
    exec(compile(block("FastAPI, with a session for each user"), "recipes.md", "exec", dont_inherit=True), names)
    with own_daemon(tmp_path), TestClient(names["app"]) as client:

        def ask(token: str, code: str) -> Any:
            return client.post("/run", json={"code": code}, headers={"Authorization": f"Bearer {token}"})

        assert ask("a-token-of-ada", "x = 41; open('hers', 'w').close()").json()["status"] == "success"
        assert ask("a-token-of-ada", "x + 1").json()["return_value"] == "42"
        assert ask("a-token-of-bob", "import os; os.listdir(), 'x' in globals()").json()["return_value"] == "([], False)"
        assert ask("another", "1").status_code == 401


@pytest.mark.slow
def test_fixtures_of_pytest_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "test_recipe.py").write_text(block("pytest"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_recipe.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
async def test_litellm_and_open_webui_find_the_mcp_server(tmp_path: Path) -> None:
    """As both connect: to this address, with this token as a bearer."""
    heading = "LiteLLM and Open WebUI"
    server = yaml.safe_load(block(heading, "yaml"))["mcp_servers"]["cellblock"]
    assert (server["transport"], server["auth_type"]) == ("http", "bearer_token")
    variable = server["auth_value"].removeprefix("os.environ/")
    export, start = block(heading, "sh").splitlines()
    token = subprocess.check_output(["sh", "-c", f"{export}; echo ${variable}"], text=True).strip()
    start = start.replace("/path/to/workspaces", str(tmp_path)).replace("8900", "0")
    started = await asyncio.create_subprocess_exec(
        *shlex.split(start), env={**_PROGRAMS, variable: token}, stderr=asyncio.subprocess.PIPE
    )
    assert started.stderr is not None
    try:
        while not (address := re.search(r"http://\S+/mcp", (await started.stderr.readline()).decode())):
            assert started.returncode is None
        assert re.sub(r":\d+/", ":8900/", address[0]) == server["url"]
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
        async with http, Client(streamable_http_client(address[0], http_client=http), client_info=PATIENT) as client:
            assert text(await run(client, "6 * 7")).endswith("42")
    finally:
        started.send_signal(signal.SIGTERM)
        await started.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 3])
def test_a_step_of_a_workflow_runs_a_script(tmp_path: Path, status: int) -> None:
    steps = yaml.safe_load(block("A step of a GitHub workflow", "yaml"))["jobs"]["run"]["steps"]
    commands = [step["run"] for step in steps if step.get("run", "").startswith("cellblock ")]
    assert len(commands) == 2
    with own_daemon(tmp_path):
        Path("script.py").write_text(f"import sys\nsys.exit({status})\n")
        environment = {**_PROGRAMS, "CELLBLOCK_HOME": os.environ["CELLBLOCK_HOME"]}
        statuses = [
            subprocess.run(shlex.split(line), env=environment, capture_output=True, check=False).returncode
            for line in commands
        ]
    assert statuses == [0, status]
