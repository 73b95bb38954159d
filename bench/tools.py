"""What a tool call from a cell costs, and an API for the tools of a server.

The servers are the same for all, and so is the interpreter of those that are written in Python: that of this bench. A call
from a cell and one of the SDK's own client take turns in one run, each with a server of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cases import Series, ms
from bench.systems import Kernel, System

_ROOT = Path("mcptools")
_WARM = 5  # calls of each turn that are not counted
_CALLS = {
    "echo": ("echo", {"text": "hello"}),
    "time": ("get_current_time", {"timezone": "UTC"}),
}
"""The tool that is called of each server, and its arguments."""

_ONE_BY_ONE = """
import json, time
from mcptools.{server} import {tool} as _tool
_params, _times = _tool.Params(**{arguments!r}), []
for _ in range({n}):
    _began = time.perf_counter()
    _tool.run(_params)
    _times.append((time.perf_counter() - _began) * 1000)
print(json.dumps(_times))
"""

_GATHERED = """
import asyncio, json, time
from mcptools.{server}.echo import Params, {function} as _call
await _call(Params(text="first"))
_began = time.perf_counter()
_said = await asyncio.gather(*(_call(Params(text=str(number))) for number in range({n})))
assert _said == [str(number) for number in range({n})]
print(json.dumps([(time.perf_counter() - _began) * 1000]))
"""

_GENERATE = """
import asyncio
from pathlib import Path
from {module} import generate_mcp_sources
async def main():
    calls = (generate_mcp_sources(name, params, Path({root!r})) for name, params in {servers!r}.items())
    {form}
asyncio.run(main())
"""
_IN_TURN = "for call in calls: await call"
_TOGETHER = "await asyncio.gather(*calls)"


def _server(name: str, python: str) -> dict[str, Any]:
    """Return the parameters of a server; it runs in this directory."""
    here = Path.cwd()
    match name:
        case "echo":
            return {"command": python, "args": ["-S", str(Path(__file__).with_name("echo_server.py"))]}
        case "time":
            return {"command": python, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]}
        case "git":
            subprocess.run(["git", "init", "--quiet", "repository"], check=True)
            return {"command": python, "args": ["-m", "mcp_server_git", "--repository", str(here / "repository")]}
    program = shutil.which(f"mcp-server-{name}")
    if program is None:
        raise FileNotFoundError(f"mcp-server-{name} is missing: npm install -g @modelcontextprotocol/server-{name}")
    more = {"filesystem": [str(here)], "everything": ["stdio"], "memory": []}
    return {"command": program, "args": more[name], "env": {"MEMORY_FILE_PATH": str(here / "memory.json")}}


def _prepare() -> None:
    """Go to a workspace, beside which the state is: no workspace may hold that."""
    os.environ["CELLBLOCK_HOME"] = str(Path("state").absolute())
    Path("workspace").mkdir()
    os.chdir("workspace")


async def call(system: System, *, server: str, n: int, turns: int, python: str = sys.executable) -> Series:
    """One tool call after another: in a cell, and for cellblock with the SDK's own client as well."""
    _prepare()
    params = _server(server, python)
    await system.generate(server, params, _ROOT)
    await system.open()
    kernel = await system.kernel("native")
    own = system.module == "cellblock"
    series: Series = {"cell": []}
    if own:
        series["SDK"] = []
    async with _Direct(params if own else None) as direct:
        for _ in range(turns):
            series["cell"] += (await _in_cell(kernel, server, n + _WARM))[_WARM:]
            if own:
                series["SDK"] += (await direct.call(*_CALLS[server], n + _WARM))[_WARM:]
    await kernel.close()
    await system.close()
    if own:
        series["added, ms"] = [statistics.median(series["cell"]) - statistics.median(series["SDK"])]
    return series


async def many(system: System, *, n: int) -> Series:
    """Many calls of the quickest tool: one by one, and gathered."""
    _prepare()
    params = _server("echo", sys.executable)
    await system.generate("echo", params, _ROOT)
    await system.generate("gathered", params, _ROOT, awaited=True)
    await system.open()
    kernel = await system.kernel("native")
    await _in_cell(kernel, "echo", _WARM)
    series = {"one by one": [sum(await _in_cell(kernel, "echo", n))]}
    function = "run_async" if system.module == "cellblock" else "run"
    series["gathered"] = json.loads(await kernel.execute(_GATHERED.format(server="gathered", function=function, n=n)))
    await kernel.close()
    await system.close()
    # What somebody who wants many calls would do: with ipybox, which generates either form, the blocking one is the default.
    return {**series, "usual": series["gathered" if system.module == "cellblock" else "one by one"]}


async def rules(_system: System, *, n: int, count: int) -> Series:
    """A decision by the last of some rules, with its record in the audit trail: what approval adds to a call."""
    from cellblock.tools.approvals.broker import Broker
    from cellblock.tools.approvals.rules import Rule, Rules
    from cellblock.tools.registry.approvals import Approvals

    others = tuple(Rule("deny", server="echo", tool=f"other_{number}_*") for number in range(count - 1))
    times = []
    with Approvals(Path("state").absolute()) as approvals:
        broker = Broker(Rules((*others, Rule("allow", server="ec*", arguments={"text": "he*"}))), record=approvals.add)
        for _ in range(n + _WARM):
            began = time.perf_counter()
            decision = await broker.decide("tool", "echo", *_CALLS["echo"])
            times.append(ms(began))
            assert decision.allowed
    return {"ms": times[_WARM:]}


async def generate(system: System, *, python: str = sys.executable) -> Series:
    """Whole programs that write APIs for five servers: one after the other, and gathered.

    Most of what it takes is the servers' own: a hand-written client starts and asks the same ones, in turns with the programs.
    """
    _prepare()
    servers = {name: _server(name, python) for name in ("git", "time", "filesystem", "everything", "memory")}
    alone = [sum(map(_alone, servers.values()))]
    series: Series = {}
    for name, form in (("in turn", _IN_TURN), ("gathered", _TOGETHER)):
        program = _GENERATE.format(module=system.module, servers=servers, root=name, form=form)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=True)
        series[name] = [ms(began)]
        alone.append(sum(map(_alone, servers.values())))
    return {**series, "servers alone": alone, "beyond the servers": [series["in turn"][0] - statistics.median(alone)]}


def _alone(params: Mapping[str, Any]) -> float:
    """Start a server, ask for its tools, and have it end; return the milliseconds."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    began = time.perf_counter()
    with subprocess.Popen(
        [params["command"], *params["args"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **params.get("env", {})},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def say(message: dict[str, Any]) -> None:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            process.stdin.flush()

        say({"id": 0, "method": "initialize", "params": about})
        process.stdout.readline()
        say({"method": "notifications/initialized"})
        say({"id": 1, "method": "tools/list"})
        while json.loads(process.stdout.readline()).get("id") != 1:
            pass
        process.stdin.close()
        process.stdin = None  # closed, for communicate()
        process.communicate(timeout=30)
    return ms(began)


async def _in_cell(kernel: Kernel, server: str, n: int) -> list[float]:
    tool, arguments = _CALLS[server]
    text = await kernel.execute(_ONE_BY_ONE.format(server=server, tool=tool, arguments=arguments, n=n))
    times: list[float] = json.loads(text)
    return times


class _Direct:
    """The SDK's own client, connected to a server; or nothing, where there is none."""

    def __init__(self, params: Mapping[str, Any] | None) -> None:
        self._params = params
        self._client: Any = None

    async def __aenter__(self) -> _Direct:
        if self._params is not None:
            from mcp import Client, StdioServerParameters

            self._client = Client(StdioServerParameters(**self._params))
            await self._client.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        if self._client is not None:
            await self._client.__aexit__(*exception)

    async def call(self, tool: str, arguments: dict[str, Any], n: int) -> list[float]:
        """Call a tool again and again; return what each call took."""
        times = []
        for _ in range(n):
            began = time.perf_counter()
            await self._client.call_tool(tool, arguments)
            times.append(ms(began))
        return times
