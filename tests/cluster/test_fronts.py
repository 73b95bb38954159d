"""The command line, functions and the gateway with `CELLBLOCK_RAY_ADDRESS`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from cellblock.cluster import RayHosts
from cellblock.service.daemon.place import Place
from cluster.nodes import Nodes, ready, until
from mcp_clients import text
from tool_sessions import desk

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

PROGRAM = """
import cellblock
made = cellblock.get_or_create("functions")
assert cellblock.execute(made, "x = 6 * 7; x").text == "42"
assert [one.name for one in cellblock.list_kernels()] == ["functions"]
assert cellblock.execute_with_retry(made, "1 / 0", lambda result, attempt: "x").text == "42"
cellblock.destroy(made)
assert cellblock.list_kernels() == []
print("done")
"""


@pytest.fixture
def environment(hosts: RayHosts, nodes: Nodes) -> dict[str, str]:
    """The environment of a program that uses the cluster."""
    return {**os.environ, "CELLBLOCK_RAY_ADDRESS": nodes.address, "CELLBLOCK_HOME": str(nodes.home)}


def cellblock(environment: dict[str, str], *arguments: str, given: str = "", status: int = 0) -> str:
    """Run a command, and return what it prints."""
    command = [sys.executable, "-m", "cellblock", *arguments]
    ended = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, timeout=300)
    assert ended.returncode == status, ended.stderr
    return ended.stdout


async def test_the_command_line(hosts: RayHosts, environment: dict[str, str], nodes: Nodes) -> None:
    await ready(hosts, 3)
    assert cellblock(environment, "exec", "lines", "x = 20; x + 1") == "21\n"
    assert cellblock(environment, "exec", "lines", "print(input('name? '))", given="Ada\n") == "name? Ada\nAda\n"
    assert (await hosts.find("lines")).record.kernel_type == "python3"
    assert "lines" in {kernel["name"] for kernel in json.loads(cellblock(environment, "list", "--json"))["kernels"]}
    assert "x" in cellblock(environment, "variables", "lines")
    assert "session 'nobody'" not in cellblock(environment, "destroy", "lines")
    found = json.loads(cellblock(environment, "cluster", "status", "--json"))
    assert len(found["nodes"]) == 3
    assert not Place(nodes.home).is_held(), "no daemon of this machine was started"


async def test_functions(environment: dict[str, str], tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert ended.stdout == "done\n", ended.stderr


@pytest.fixture
def gateway(environment: dict[str, str], nodes: Nodes) -> Iterator[str]:
    """The address of a gateway to the cluster."""
    del environment["CELLBLOCK_RAY_ADDRESS"]
    command = [sys.executable, "-m", "cellblock", "serve", "--port", "0", "--no-auth", "--ray", nodes.address]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr as said:
        while "http://" not in (line := said.readline()):
            assert line, "it ended"
        yield line[line.index("http://") :].split()[0].rstrip(".,")
        process.terminate()
        process.wait(30)


async def test_the_gateway(hosts: RayHosts, gateway: str) -> None:
    with httpx.Client(base_url=gateway, timeout=120) as api:
        made = api.post("/sessions/web").json()
        assert made["name"] == "web"
        assert api.post("/kernels/web/execute", json={"code": "6 * 7"}).json()["text"] == "42"
        assert [one["name"] for one in api.get("/kernels").json()["kernels"]] == ["web"]
        number = api.post("/sessions/web/executions", json={"code": "print(5)"}).json()["id"]
        await until(lambda: api.get(f"/executions/{number}").json()["state"] == "done")
        assert "5" in api.get(f"/executions/{number}/events").text
        assert (await hosts.find("web")).id == made["kernel_id"]
        assert api.get("/sessions/nobody/executions").status_code == 404
        assert api.get("/approvals").json() == {"pending": []}
        with api.stream("GET", "/events") as events:
            changes = (json.loads(line[5:]) for line in events.iter_lines() if line.startswith("data:"))
            assert next(change["sessions"] for change in changes if change["sessions"])[0]["name"] == "web"
        assert api.delete("/kernels/web").json()["destroyed"]


async def test_the_mcp_server(hosts: RayHosts, environment: dict[str, str], tmp_path: Path) -> None:
    """Its session is on a node, with its tools, and ends with the server."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "cellblock", "mcp", "--programs"], env=environment | {"CELLBLOCK_MCP_WAIT": "600"}
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as client:
        await client.initialize()

        async def call(tool: str, **arguments: Any) -> str:
            return text(await client.call_tool(tool, arguments))

        assert await call("execute_ipython_cell", code="x = 20") == "(no output)"
        (session,) = [one for one in await hosts.list_sessions() if one.name.startswith("mcp-")]
        assert await call("execute_ipython_cell", code="x += 1; x") == "21"
        assert "Undone" in await call("undo")
        assert await call("execute_ipython_cell", code="x") == "20"
        assert await call("execute_ipython_cell", code="import os; os.getcwd()") == repr(session.workspace)
        long = await call("execute_ipython_cell", code="print('x' * 9000)")
        assert "All of it: outputs/cell-" in long
        params = {**desk(tmp_path / "notes"), "env": {}}
        assert "desk is registered" in await call("register_mcp_server", server_name="desk", server_params=params)
        assert "mcptools.desk.add" in await call("search_tools", words="add")
        code = "from mcptools.desk.add import Params, run\nrun(Params(a=40, b=2))"
        assert "42" in await call("execute_ipython_cell", code=code)
        running = await call("execute_ipython_cell", code="import time\ntime.sleep(2)\n'slept'", wait=0.2)
        number = running.split("cell='")[1].split("'")[0]
        assert await call("execute_ipython_cell", cell=number) == "'slept'"
        assert "no cell" in await call("execute_ipython_cell", cell="0" * 32)
        assert await call("run_program", command="echo $((6 * 7))") == "42"
        assert "fresh" in await call("reset")
        assert "NameError" in await call("execute_ipython_cell", code="x")
    assert await until(lambda: _is_gone(hosts, session.name))


async def _is_gone(hosts: RayHosts, name: str) -> bool:
    return name not in [one.name for one in await hosts.list_sessions()]


async def test_the_mcp_server_over_http_finds_sessions_again(hosts: RayHosts, environment: dict[str, str]) -> None:
    """They are the cluster's: another server, which knows the handle, goes on with them."""
    command = [sys.executable, "-m", "cellblock", "mcp", "--transport", "http", "--port", "0", "--no-auth"]
    handle = ""
    for expected in ("20", "21"):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        with process.stderr as said:
            while "http://" not in (line := said.readline()):
                assert line, "it ended"
            async with streamable_http_client(line.split()[-1]) as streams, ClientSession(*streams[:2]) as client:
                await client.initialize()
                code = "x += 1\nx" if handle else "x = 20\nx"
                arguments = {"code": code, **({"session": handle} if handle else {})}
                shown = text(await client.call_tool("execute_ipython_cell", arguments))
                head, _, value = shown.partition("\n")
                assert value == expected
                handle = head.removeprefix("[session ").removesuffix("]")
            process.terminate()
            process.wait(30)
    await (await hosts.find(handle)).close()
    ended = subprocess.run([*command, "--workspace", "."], env=environment, capture_output=True, text=True, timeout=60)
    assert "leave --workspace out" in ended.stderr
