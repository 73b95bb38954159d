"""`cellblock.adapters.deepagents`, by the suite in langchain-tests and by a real deep agent."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests.sandboxes import SandboxIntegrationTests

from cellblock import SyncCodeExecutor
from cellblock.adapters.deepagents import CellblockSandbox
from frameworks.document import check_agent

_NEWER = tuple(int(part) for part in version("deepagents").split(".")) >= (0, 7, 10)
_CHANGED = {
    "test_glob": "glob returns absolute paths",
    "test_glob_basic_pattern": "glob returns absolute paths",
    "test_glob_hidden_files_explicitly": "glob returns absolute paths",
    "test_glob_with_directories": "glob returns absolute paths",
    "test_glob_with_character_class": "glob returns absolute paths",
    "test_glob_with_question_mark": "glob returns absolute paths",
    "test_write_existing_file_fails": "write overwrites",
}
"""Tests that want what deepagents no longer does since 0.7.10: they fail with any backend."""


class Scripted(FakeMessagesListChatModel):
    """A model that says one message after the other, whatever tools it is given."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


class TestSuite(SandboxIntegrationTests):
    """The published suite."""

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[CellblockSandbox]:
        with CellblockSandbox() as sandbox:
            yield sandbox

    @pytest.fixture(autouse=True)
    def expected(self, request: pytest.FixtureRequest) -> None:
        if _NEWER and (reason := _CHANGED.get(request.node.name)):
            request.node.add_marker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[CellblockSandbox]:
    with CellblockSandbox(command_timeout=20) as sandbox:
        yield sandbox


def calls(**arguments: Any) -> AIMessage:
    tool = arguments.pop("tool")
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"{tool}-{len(arguments)}"}])


def test_the_agent_of_the_page() -> None:
    model = Scripted(
        responses=[
            calls(tool="execute", command="printf 'b,2\\na,1\\n' > /tmp/data.csv && sort /tmp/data.csv"),
            AIMessage("Sorted, a is first."),
        ]
    )
    check_agent("deepagents", model=model)


def test_the_tool_of_the_page() -> None:
    model = Scripted(responses=[calls(tool="run_python", code="6 * 7"), AIMessage("It is 42.")])
    check_agent("LangChain and LangGraph", model=model)


def test_commands_have_a_timeout_that_models_know(sandbox: CellblockSandbox) -> None:
    stopped = sandbox.execute("echo before; sleep 60", timeout=1)
    assert stopped.exit_code == 124
    assert stopped.output.startswith("before\n")
    assert "stopped after 1 s" in stopped.output
    assert sandbox.execute("exit 7").exit_code == 7


def test_commands_run_at_once_and_beside_a_cell() -> None:
    with SyncCodeExecutor(working_dir=".") as executor, concurrent.futures.ThreadPoolExecutor(5) as pool:
        sandbox = CellblockSandbox(executor)
        cell = pool.submit(
            executor.execute, "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n'went'"
        )
        wait = (
            "i=0; while [ $(ls here-* | wc -l) -lt 4 ] && [ $i -lt 200 ]; do sleep 0.05; i=$((i+1)); done; ls here-* | wc -l"
        )
        commands = [pool.submit(sandbox.execute, f"touch here-{number}; {wait}") for number in range(4)]
        assert [command.result().output.strip() for command in commands] == ["4"] * 4
        sandbox.execute("touch go")
        assert cell.result().return_value == "'went'"


def test_output_is_in_the_order_of_writing_and_cut_in_the_middle(sandbox: CellblockSandbox) -> None:
    assert sandbox.execute("echo 1; echo 2 >&2; echo 3").output == "1\n2\n3\n"
    large = sandbox.execute("echo first; head -c 40000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert large.truncated
    assert large.output.startswith("first\n")
    assert large.output.endswith("last\n")


def test_code_cannot_forge_what_a_command_says() -> None:
    with SyncCodeExecutor() as executor:
        executor.execute("import os, subprocess\nsubprocess.Popen = os.system = os.execve = None\nos.environ['PATH'] = '/tmp'")
        assert CellblockSandbox(executor).execute("python3 -I -c 'print(6 * 7)'").output == "42\n"


def test_its_own_session_works_in_a_directory_that_goes_with_it() -> None:
    sandbox = CellblockSandbox()
    place = sandbox.execute("pwd").output.strip()
    sandbox.execute("mkdir -p a/b && chmod 000 a/b && ln -s /etc a/link")
    sandbox.close()
    sandbox.close()
    deadline = time.monotonic() + 10
    import os.path

    while os.path.exists(place) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(place)
    assert os.path.exists("/etc")
