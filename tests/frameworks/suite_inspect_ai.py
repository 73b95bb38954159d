"""`cellblock.adapters.inspect_ai`, by `self_check` of Inspect and by real evaluations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.tool import ToolDef, bash
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from cellblock.adapters.inspect_ai import CellblockConfig, CellblockSandbox
from frameworks.document import check_agent


@pytest.fixture(scope="module")
async def started() -> AsyncIterator[SandboxEnvironment]:
    environments = await CellblockSandbox.sample_init("self_check", None, {})
    yield environments["default"]
    await CellblockSandbox.sample_cleanup("self_check", None, environments, False)


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest, started: SandboxEnvironment) -> SandboxEnvironment:
    """What the checks of Inspect run in."""
    if request.node.originalname == "test_exec_as_user":
        request.node.add_marker(pytest.mark.xfail(strict=True, reason="a session has one user"))
    return started


def test_the_agent_of_the_page() -> None:
    (argument, *_) = ToolDef(bash()).parameters.properties  # releases differ in its name
    outputs = [
        ModelOutput.for_tool_call("mockllm", "bash", {argument: "echo $((6 * 7)) > answer.txt"}),
        ModelOutput.from_content("mockllm", "I wrote it down."),
    ]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # counting them would need the network
    check_agent("Inspect", model=get_model("mockllm/model", custom_outputs=outputs))


def test_the_entry_point_registers_it() -> None:
    assert registry_find_sandboxenv("cellblock") is CellblockSandbox


async def test_options_are_data_from_the_task_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(json.dumps({"kernel_env": {"REGION": "north"}}))
    for config in (CellblockConfig.model_validate({"kernel_env": {"REGION": "north"}}), str(tmp_path / "options.json")):
        environments = await CellblockSandbox.sample_init("t", config, {})
        assert (await environments["default"].exec(["printenv", "REGION"])).stdout == "north\n"
        await CellblockSandbox.sample_cleanup("t", config, environments, True)
    assert CellblockSandbox.config_deserialize(
        CellblockConfig.model_validate({"timeout": 5}).model_dump()
    ) == CellblockConfig.model_validate({"timeout": 5})


async def test_a_program_that_was_stopped_is_not_run_again(started: Any) -> None:
    with pytest.raises(TimeoutError):
        await started.exec(["sh", "-c", "echo ran >> runs; sleep 60"], timeout=1)
    assert await started.read_file("runs") == "ran\n"


async def test_a_cancelled_program_has_ended(started: Any) -> None:
    running = asyncio.create_task(started.exec(["sh", "-c", "echo $$ > pid; exec sleep 600"]))
    while (await started.exec(["test", "-s", "pid"])).returncode:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    pid = (await started.read_file("pid")).strip()
    assert (await started.exec(["kill", "-0", pid])).returncode != 0


async def test_a_scorer_reads_the_truth_whatever_the_code_has_patched(started: Any) -> None:
    await started.executor.execute("import subprocess, builtins\nsubprocess.Popen = subprocess.run = None\nopen = None")
    await started.write_file("check.py", "assert 1 + 1 == 3, 'wrong'")
    checked = await started.exec(["python3", "-I", "check.py"])
    assert not checked.success
    assert "AssertionError: wrong" in checked.stderr
