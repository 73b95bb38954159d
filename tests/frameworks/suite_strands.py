"""`cellblock.adapters.strands`, by a real agent and as Strands describes sandboxes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from strands.models import Model
from strands.sandbox.errors import SandboxTimeoutError
from strands.sandbox.types import ExecutionResult, StreamChunk

from cellblock import CodeExecutor
from cellblock.adapters.strands import CellblockSandbox
from frameworks.document import check_agent


class Scripted(Model):
    """A model that says one thing after the other: a text, or a tool with its arguments."""

    def __init__(self, *steps: str | tuple[str, str]) -> None:
        self._steps = [*steps]

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *arguments: Any, **options: Any) -> AsyncGenerator[Any, None]:
        step = self._steps.pop(0)
        tool = {} if isinstance(step, str) else {"toolUse": {"name": step[0], "toolUseId": f"t{len(self._steps)}"}}
        delta = {"text": step} if isinstance(step, str) else {"toolUse": {"input": step[1]}}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": tool}}
        yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if tool else "end_turn"}}


@pytest.fixture
async def sandbox() -> AsyncIterator[CellblockSandbox]:
    sandbox = CellblockSandbox()
    yield sandbox
    await sandbox.close()


def test_the_agent_of_the_page() -> None:
    check_agent("Strands", model=Scripted(("sandbox_shell", '{"command": "echo $((6 * 7)) > answer.txt"}'), "It is 42."))


async def test_output_is_yielded_as_it_comes_and_the_result_last(sandbox: CellblockSandbox) -> None:
    command = "printf 'one\\n'; while [ ! -e go ]; do sleep 0.02; done; echo two >&2; exit 3"
    async with aclosing(sandbox.execute_streaming(command, env={"A": "b"})) as events:
        assert await anext(events) == StreamChunk("one\n", "stdout")
        await sandbox.write_file("go", b"")
        assert await anext(events) == StreamChunk("two\n", "stderr")
        assert await anext(events) == ExecutionResult(3, "one\n", "two\n")
    assert (await sandbox.execute("echo $A $PWD", cwd="/", env={"A": "b"})).stdout == "b /\n"


async def test_a_timeout_has_what_was_said_and_leaving_stops_the_command(sandbox: CellblockSandbox) -> None:
    with pytest.raises(SandboxTimeoutError) as raised:
        await sandbox.execute("echo out; echo err >&2; sleep 60", timeout=0.5)
    assert (raised.value.stdout, raised.value.stderr) == ("out\n", "err\n")
    async with aclosing(sandbox.execute_streaming("echo $$; sleep 600")) as events:
        pid = (await anext(events)).data
    assert (await sandbox.execute(f"kill -0 {pid}")).exit_code != 0


async def test_python_runs_in_the_session_and_shows_pictures(sandbox: CellblockSandbox) -> None:
    await sandbox.execute_code("x = 20", "python")
    assert await sandbox.execute_code("print(x)\nx + 1", "python3") == ExecutionResult(0, "20\n\n21", "")
    failed = await sandbox.execute_code("1 / 0", "python")
    assert failed.exit_code == 1
    assert failed.stderr.endswith("ZeroDivisionError: division by zero")
    (picture,) = (await sandbox.execute_code("import PIL.Image\nPIL.Image.new('RGB', (1, 1))", "python")).output_files
    assert (picture.name, picture.mime_type, picture.content[:4]) == ("image-1.png", "image/png", b"\x89PNG")
    with pytest.raises(SandboxTimeoutError):
        await sandbox.execute_code("while True: pass", "python", timeout=0.5)
    assert (await sandbox.execute_code("echo $((1 + 1))", "sh")).stdout == "2\n"


async def test_files_are_those_of_the_sandbox(sandbox: CellblockSandbox) -> None:
    await sandbox.write_text("a/b.txt", "text")
    assert await sandbox.read_text("a/b.txt") == "text"
    assert [(one.name, one.is_dir, one.size) for one in await sandbox.list_files("a")] == [("b.txt", False, 4)]
    await sandbox.remove_file("a/b.txt")
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("a/b.txt")


async def test_a_given_executor_stays_its_owners() -> None:
    async with CodeExecutor(working_dir=".") as executor:
        sandbox = CellblockSandbox(executor)
        assert (await sandbox.execute("echo 1")).stdout == "1\n"
        await sandbox.close()
        assert (await executor.execute("1")).text == "1"
