"""The reference servers of npm, in all three transports. They fail where the servers are not installed; see .ci/run."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import McpServerError
from cellblock.tools.mcp.params import parse_params
from cellblock.tools.mcp.servers import Servers
from processes import below, eventually

pytestmark = [pytest.mark.npm]


@pytest.fixture
async def servers(nothing_left_behind: None, tmp_path: Path) -> AsyncIterator[Servers]:
    given: dict[str, dict[str, Any]] = {
        "filesystem": {"command": "mcp-server-filesystem", "args": [str(tmp_path)]},
        "memory": {"command": "mcp-server-memory", "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}},
        "everything": {"command": "mcp-server-everything"},
        "npx": {"command": "npx", "args": ["--offline", "--no", "mcp-server-everything"]},
    }
    async with Servers(lambda name: parse_params(name, given[name]), environment=os.environ) as servers:
        yield servers


@pytest.fixture(params=["streamableHttp", "sse"])
def running(request: pytest.FixtureRequest, nothing_left_behind: None) -> Iterator[dict[str, str]]:
    """The everything server over HTTP, as parameters that reach it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        ["mcp-server-everything", request.param],
        env=os.environ | {"PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield {"url": f"http://127.0.0.1:{port}/{'sse' if request.param == 'sse' else 'mcp'}"}
        process.kill()


async def test_the_filesystem_server(servers: Servers, tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in await servers.list_tools("filesystem")}
    assert len(tools) == 14
    assert all(tool.output_schema for tool in tools.values())
    assert tools["read_text_file"].read_only is True
    assert tools["write_file"].destructive is True
    path = tmp_path / "a.txt"
    await servers.call("filesystem", "write_file", {"path": str(path), "content": "hällo"})
    assert path.read_text() == "hällo"
    outcome = await servers.call("filesystem", "read_text_file", {"path": str(path)})
    assert (outcome.text, outcome.structured) == ("hällo", {"content": "hällo"})
    refused = await servers.call("filesystem", "read_text_file", {"path": "/etc/passwd"})
    assert refused.is_error
    assert "denied" in refused.text


async def test_the_memory_server_remembers_across_a_reset(servers: Servers) -> None:
    entity = {"name": "cellblock", "entityType": "library", "observations": ["is quick"]}
    assert len(await servers.list_tools("memory")) == 9
    await servers.call("memory", "create_entities", {"entities": [entity]})
    await servers.reset()
    assert (await servers.call("memory", "read_graph", {})).structured["entities"] == [entity]  # type: ignore[index]


async def use_everything(servers: Servers, name: str) -> None:
    assert len(await servers.list_tools(name)) >= 13
    assert (await servers.call(name, "echo", {"message": "hi"})).text == "Echo: hi"
    assert (await servers.call(name, "get-tiny-image", {})).images[0].data.startswith(b"\x89PNG")
    links = await servers.call(name, "get-resource-links", {"count": 2})
    assert [resource.text for resource in links.resources] == [None, None]
    weather = await servers.call(name, "get-structured-content", {"location": "New York"})
    assert {*weather.structured} == {"temperature", "conditions", "humidity"}  # type: ignore[misc]
    steps: list[float] = []
    arguments = {"duration": 0.4, "steps": 4}
    await servers.call(name, "trigger-long-running-operation", arguments, on_progress=lambda done, *_: steps.append(done))
    assert steps == [1, 2, 3, 4]
    with pytest.raises(McpServerError, match=r"did not answer within 0.2 s"):
        await servers.call(name, "trigger-long-running-operation", {"duration": 60, "steps": 1}, timeout=0.2)


async def test_the_everything_server_over_stdio(servers: Servers) -> None:
    await use_everything(servers, "everything")
    outcome = await servers.call("everything", "trigger-elicitation-request", {}, timeout=20)
    assert "decline" in outcome.text


async def test_the_everything_server_over_http(running: dict[str, str]) -> None:
    params = parse_params("running", running)
    async with Servers(lambda _: params, environment=os.environ) as servers:

        async def up() -> bool:
            try:
                return bool(await servers.list_tools("running"))
            except McpServerError:
                return False

        await eventually(up)
        await use_everything(servers, "running")


async def test_a_server_that_npx_starts_leaves_nothing(servers: Servers) -> None:
    before = below(os.getpid())
    assert (await servers.call("npx", "echo", {"message": "hi"})).text == "Echo: hi"
    started = below(os.getpid()) - before
    assert len(started) >= 3  # the keeper, npx and node
    await servers.reset()
    assert not started & below(os.getpid())


async def test_many_calls_at_a_time(servers: Servers) -> None:
    outcomes = await asyncio.gather(*(servers.call("everything", "get-sum", {"a": n, "b": n}) for n in range(500)))
    assert all(f" {2 * n}." in f"{outcome.text}." for n, outcome in enumerate(outcomes))
