"""`cellblock.adapters.pydantic_ai`, by the conformance suite of Pydantic AI and by a real agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from cellblock import CodeExecutor
from cellblock.adapters.pydantic_ai import CellblockWorkspace, repl_toolset
from frameworks.document import check_agent


def scripted(*parts: Any) -> FunctionModel:
    """Return a model that says one part after the other."""
    left = iter(parts)

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        part = next(left)
        return ModelResponse(parts=[TextPart(part) if isinstance(part, str) else part])

    return FunctionModel(say)


class TestSuite(WorkspaceBackendSuite):
    """The published suite, with all that is optional in it."""

    @pytest.fixture
    async def made(self) -> AsyncIterator[list[CellblockWorkspace]]:
        made: list[CellblockWorkspace] = []
        yield made
        for workspace in made:
            await workspace.close()

    @pytest.fixture
    def backend(self, made: list[CellblockWorkspace]) -> WorkspaceBackend:
        made.append(CellblockWorkspace())
        return made[-1]

    @pytest.fixture
    def fresh_backend(self, made: list[CellblockWorkspace]) -> Callable[[], WorkspaceBackend]:
        def fresh() -> WorkspaceBackend:
            made.append(CellblockWorkspace())
            return made[-1]

        return fresh

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: CellblockWorkspace(ref=ref)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: Any) -> None:
            await backend.close()

        return destroy


@pytest.fixture
async def workspace() -> AsyncIterator[CellblockWorkspace]:
    workspace = CellblockWorkspace()
    yield workspace
    await workspace.close()


def test_the_agent_of_the_page() -> None:
    model = scripted(
        ToolCallPart("run_python", {"code": "import pathlib\npathlib.Path('n.txt').write_text('42')"}),
        ToolCallPart("shell", {"command": "cat n.txt"}),
        "It is 42.",
    )
    check_agent("Pydantic AI", model=model)


async def test_the_repl_keeps_variables_and_shows_errors(workspace: CellblockWorkspace) -> None:
    model = scripted(
        ToolCallPart("run_python", {"code": "x = 20"}), ToolCallPart("run_python", {"code": "print(x + 1)\n1/0"}), "done"
    )
    result = await Agent(model, toolsets=[repl_toolset(workspace)]).run("?")
    returned = [part.content for message in result.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    assert len(returned) == 2
    assert "21" in returned[1]
    assert "ZeroDivisionError" in returned[1]


async def test_a_timeout_has_what_was_said_until_then(workspace: CellblockWorkspace) -> None:
    with pytest.raises(WorkspaceTimeoutError) as raised:
        await workspace.run("echo out; echo err >&2; sleep 60", shell=True, timeout=1)
    assert (raised.value.stdout, raised.value.stderr) == ("out\n", "err\n")
    with pytest.raises(ValueError, match="timeout"):
        await workspace.run(["true"], timeout=0)


async def test_output_is_complete_or_an_error(workspace: CellblockWorkspace) -> None:
    with pytest.raises(WorkspaceOutputLimitError):
        await workspace.run("head -c 40000000 /dev/zero", shell=True)


async def test_a_given_executor_stays_its_owners() -> None:
    async with CodeExecutor(working_dir=".") as executor:
        workspace = CellblockWorkspace(executor)
        assert (await workspace.run(["pwd"])).stdout.strip() == await workspace.working_dir()
        await workspace.close()
        with pytest.raises(WorkspaceUnavailableError):
            await workspace.working_dir()
        assert (await executor.execute("1")).text == "1"


async def test_several_commands_run_at_once(workspace: CellblockWorkspace) -> None:
    wait = "touch $0; i=0; while [ ! -e $1 ] && [ $i -lt 200 ]; do sleep 0.05; i=$((i+1)); done; [ -e $1 ]"
    both = (workspace.run(["sh", "-c", wait, "a", "b"]), workspace.run(["sh", "-c", wait, "b", "a"]))
    assert [result.exit_code for result in await asyncio.gather(*both)] == [0, 0]
