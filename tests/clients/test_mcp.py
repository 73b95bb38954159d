"""MCP clients of others use the server: the Inspector's command lines in both eras of the protocol, the conformance suite."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from processes import eventually

pytestmark = pytest.mark.clients

PROGRAMS = Path(__file__).parents[2] / "build" / "clients" / "node_modules" / ".bin"
"""Where .ci/install puts them, with the Node that they need."""

CELLBLOCK = Path(sys.executable).with_name("cellblock")

SCENARIOS = (
    "server-initialize",
    "ping",
    "resources-list",
    "prompts-list",
    "sep-2164-resource-not-found",
    "input-required-result-unsupported-methods",
    "input-required-result-ignore-extra-params",
    "input-required-result-validate-input",
    "server-session-lifecycle",
    "server-stateless",
    "tools-list",
    "dns-rebinding-protection",
    "caching",
    "http-header-validation",
    "server-sse-multiple-streams",
)
"""Those of the suite that a server passes which has none of its tools, prompts and resources."""

NEED_A_TOOL = {"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"}
"""Checks that call ``test_missing_capability``, a tool of servers that were made to be tested."""

_TOOL_FAILED = 5
"""The exit status of mcpdo if the answer is an error."""

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs one of the programs, with a home of its own, and returns what it says as JSON."""
    variables = {**os.environ, "HOME": str(tmp_path), "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "NO_COLOR": "1"}
    (tmp_path / "workspace").mkdir()

    with TemporaryDirectory(prefix="mcp-") as short:  # a socket is made there, whose path must be short
        variables |= {"MCP_STORAGE_DIR": short, "MCP_INSPECTOR_SECRET_STORE": "file"}

        def run(program: str, *arguments: str) -> Any:
            command = [str(PROGRAMS / program), *arguments]
            done = subprocess.run(
                command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode in (0, _TOOL_FAILED), done.stdout + done.stderr
            return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout

        yield run
        subprocess.run([PROGRAMS / "mcpdo", "daemon", "stop"], env=variables, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_mcpdo_answers_what_the_server_asks(run: Run, era: str) -> None:
    server = [str(CELLBLOCK), "mcp", "--workspace", "workspace", "--approve", "ask", "--approve-shell-cmds"]
    connection = run("mcpdo", "--format", "json", "connect", "--era", era, "--", *server)
    assert connection["protocolEra"] == era
    mcpdo = ("mcpdo", "--format", "json", "--connection", connection["name"])
    asked = run(*mcpdo, "tools/call", "execute_ipython_cell", "code:=x = 1\n!echo one")["elicitationPending"]
    assert asked["message"].startswith("The code wants to run a command: shell.shell(command='echo one', ")
    result = run(*mcpdo, "elicitation/respond", asked["elicitationId"], "decision:=once")
    assert result["content"] == [{"type": "text", "text": "one"}]
    asked = run(*mcpdo, "tools/call", "execute_ipython_cell", "code:=!echo two")["elicitationPending"]
    result = run(*mcpdo, "elicitation/respond", asked["elicitationId"], "--decline")
    assert "was not approved" in result["content"][0]["text"]
    assert run(*mcpdo, "tools/call", "execute_ipython_cell", "code:=x")["content"] == [{"type": "text", "text": "1"}]
    run("mcpdo", "disconnect", connection["name"])


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_lists_and_calls_tools(run: Run, era: str) -> None:
    inspect = ("mcp-inspector", "--cli", "--protocol-era", era)
    server = ("--", str(CELLBLOCK), "mcp", "--workspace", "workspace")
    listed = run(*inspect, "--method", "tools/list", "--strict", *server)
    assert len(listed["tools"]) == 7
    call = ("--method", "tools/call", "--tool-name", "execute_ipython_cell", "--tool-arg", "code=6 * 7")
    assert run(*inspect, *call, *server)["content"] == [{"type": "text", "text": "42"}]


def test_the_entry_for_the_registry_is_valid_by_its_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = files("skillsaw") / "schemas" / "mcp_registry" / "v2025_12_11" / "server.schema.json"
    entry = json.loads((PROGRAMS.parents[3] / "server.json").read_text())
    jsonschema.validate(entry, json.loads(schema.read_text()), format_checker=jsonschema.FormatChecker())


@pytest.mark.timeout(400)  # each scenario is a Node of its own
async def test_the_conformance_suite(run: Run, tmp_path: Path) -> None:
    command = [str(CELLBLOCK), "mcp", "--transport", "http", "--port", "0", "--no-auth", "--workspace", "workspace"]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, cwd=tmp_path, stderr=log) as server:
        try:
            await eventually(lambda: "/mcp" in (tmp_path / "log").read_text(), 60)
            (url,) = re.findall(r"http://\S+", (tmp_path / "log").read_text())
            failed = {check for scenario in SCENARIOS for check in failures(url, scenario, tmp_path)}
        finally:
            server.terminate()
    assert failed == NEED_A_TOOL


def failures(url: str, scenario: str, directory: Path) -> set[str]:
    """Run a scenario of the suite; return the names of the checks that failed."""
    variables = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    command = [str(PROGRAMS / "conformance"), "server", "--url", url, "--scenario", scenario, "--output-dir", str(directory)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    said = re.sub(r"\x1b\[\d*m", "", done.stdout + done.stderr)
    passed = re.search(r"^Passed: (\d+)/(\d+), (\d+) failed", said, re.MULTILINE)
    assert passed is not None, said
    checks = {line.partition("[")[2].partition("]")[0].strip() for line in said.splitlines() if "] FAILURE " in line}
    assert (len(checks), passed[1] > "0") == (int(passed[3]), True), said
    return checks
