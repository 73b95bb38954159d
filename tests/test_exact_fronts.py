"""Undo and crashes are exact in every front: variables and files are what a model in Python says."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

import cellblock
from cellblock import Changes, CheckpointError, Client, CodeExecutionResult, Undone
from cellblock.service.daemon import control
from cli_runs import run_here
from daemons import own_daemon
from exact_machines import ExactMachine
from gateways import own_gateway, token
from session_machines import check, hosted
from suite import first_quick

pytestmark = pytest.mark.slow


class Named:
    """A named session of a front, with those methods of `Session` that the machine uses.

    Attributes:
        files: Other people's hands in its workspace.
    """

    def __init__(self, front: Any, name: str, workspace: Path) -> None:
        self.front, self.name = front, name
        self.files = SimpleNamespace(write=self._write)
        self._workspace = workspace

    async def _write(self, name: str, content: str) -> None:
        path = self._workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    async def execute(self, code: str) -> CodeExecutionResult:
        result: CodeExecutionResult = self.front.execute(self.name, code)
        return result

    async def undo(self, cells: int) -> Undone:
        undone: Undone = self.front.undo(self.name, cells)
        return undone

    async def fork(self) -> list[Named]:
        (branch,) = self.front.fork(self.name, [f"{self.name}-branch"])
        return [Named(self.front, branch.name, self._workspace)]

    async def adopt(self, branch: Named) -> Changes:
        changes: Changes = self.front.adopt(self.name, branch.name)
        return changes

    async def close(self) -> None:
        self.front.destroy(self.name)


class CommandLine:
    """The commands, as the functions of the same names."""

    def get_or_create(self, name: str, *, working_dir: Path, sandbox: bool) -> None:
        run("create", name, "--workspace", str(working_dir), *([] if sandbox else ["--no-sandbox"]))

    def execute(self, name: str, code: str) -> CodeExecutionResult:
        return CodeExecutionResult.from_dict(run("exec", "--name", name, code, fails=True))

    def undo(self, name: str, cells: int) -> Any:
        return SimpleNamespace(**run("undo", name, str(cells)))

    def fork(self, name: str, branches: list[str]) -> Any:
        run("fork", name, *branches)
        return [SimpleNamespace(name=branch) for branch in branches]

    def adopt(self, name: str, branch: str) -> Any:
        return run("adopt", name, branch)

    def destroy(self, name: str) -> Any:
        return run("destroy", name)


class Model:
    """A client of an MCP server, over its standard input and output: what is told to a model, and the facts for programs."""

    def __init__(self, workspace: Path, *, sandbox: bool) -> None:
        options = ["--workspace", str(workspace), *([] if sandbox else ["--no-sandbox"])]
        command = [sys.executable, "-m", "cellblock", "mcp", *options]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._numbers = count(1)
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        self._ask("initialize", about)
        self._send({"method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._server.stdin.flush()

    def _ask(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdout is not None
        self._send({"id": (number := next(self._numbers)), "method": method, "params": given})
        while (message := json.loads(self._server.stdout.readline())).get("id") != number:
            pass  # a notification
        answer: dict[str, Any] = message["result"]
        return answer

    def _call(self, tool: str, **given: Any) -> tuple[bool, str, dict[str, Any]]:
        answer = self._ask("tools/call", {"name": tool, "arguments": given})
        (block,) = answer["content"]
        return not answer["isError"], block["text"], answer.get("_meta", {}).get("cellblock/result", {})

    async def execute(self, code: str) -> Any:
        ok, text, facts = self._call("execute_ipython_cell", code=code)
        assert "cannot be undone" not in text
        told = {"ok": ok, "text": text, "return_value": text, "not_undoable": "", "status": facts["status"]}
        return SimpleNamespace(**told, state_lost=facts.get("state_lost", False))

    async def undo(self, cells: int) -> Any:
        ok, text, facts = self._call("undo", count=cells)
        if not ok:
            raise CheckpointError(text)
        return SimpleNamespace(cells=[None] * facts["cells"], files_left=facts.get("files_left", ""))

    async def close(self) -> None:
        self._server.communicate(timeout=30)


def run(*arguments: str, fails: bool = False) -> Any:
    """Run a command, and return the JSON that it prints."""
    done = run_here(*arguments, "--json")
    if done.returncode and not fails:
        raise CheckpointError(done.stderr)
    return json.loads(done.stdout)


class FrontMachine(ExactMachine):
    """The same with a named session. What has no front is left out."""

    keep = 5
    put = None  # type: ignore[assignment]  # no rule

    front: Any
    sandbox: bool

    @rule(rarely=st.integers(0, 2))
    def kill(self, rarely: int) -> None:
        """Kill the daemon: the next one goes on where it was. It takes a second."""
        if not rarely and (about := control.status()) is not None:
            with os.fdopen(os.pidfd_open(about["pid"])) as daemon:
                os.kill(about["pid"], signal.SIGKILL)
                # Until it has ended with all its threads: what is sent to it before would have an unknown outcome.
                assert select.select([daemon], [], [], 20)[0]
        self.compare()

    async def _start(self) -> None:
        name = f"exact-{secrets.token_hex(4)}"
        self.front.get_or_create(name, working_dir=self.workspace, sandbox=self.sandbox)
        self.session = Named(self.front, name, self.workspace)  # type: ignore[assignment]  # it has what is used


class ModelMachine(FrontMachine):
    """The same by the tools of an MCP server, whose sessions end with it."""

    kill = adopt = None  # type: ignore[assignment]  # no rules

    async def _start(self) -> None:
        self.session = Model(self.workspace, sandbox=self.sandbox)  # type: ignore[assignment]
        self.session.files = Named(None, "", self.workspace).files  # type: ignore[assignment]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        yield home


@pytest.fixture(params=first_quick(["functions", "client", "command line"]))
def front(request: pytest.FixtureRequest, daemon: Path) -> Iterator[Any]:
    """Something with the functions of named sessions."""
    if request.param != "client":
        yield cellblock if request.param == "functions" else CommandLine()
        return
    with own_gateway() as gateway, Client(gateway.url, token("admin")) as client:
        yield client


LONG = pytest.mark.long


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("sandbox", "examples", "steps"),
    [
        pytest.param(True, 1, 10, id="few"),  # each starts a server, which takes a second
        pytest.param(True, 6, 8, id="many", marks=LONG),
        pytest.param(False, 6, 8, id="many, unsandboxed", marks=LONG),
    ],
)
@pytest.mark.sampled(2)
def test_undo_and_crashes_are_exact_over_mcp(sandbox: bool, examples: int, steps: int) -> None:
    with hosted(ModelMachine) as kind:
        kind.sandbox = sandbox
        check(kind, examples, steps)


@pytest.mark.timeout(500)
@pytest.mark.parametrize("sandbox", [False, True])
@pytest.mark.parametrize(("examples", "steps"), [pytest.param(2, 10, id="few"), pytest.param(12, 8, id="many", marks=LONG)])
@pytest.mark.sampled(3)
def test_undo_and_crashes_are_exact(front: Any, sandbox: bool, examples: int, steps: int) -> None:
    with hosted(FrontMachine) as kind:
        kind.front, kind.sandbox = front, sandbox
        check(kind, examples, steps)
