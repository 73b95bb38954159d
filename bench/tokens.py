"""Tokens that tools cost a model: generated modules, compared with ipybox's, and what `search_tools` shows for a task.

Real servers, the same schemas, one tokenizer.

Usage: python -m bench.tokens [DIRECTORY]

DIRECTORY keeps what is installed for it (npm and pip; by default bench/.tokens). The tokenizer is `@anthropic-ai/tokenizer`,
an npm package that brings its data along. Servers whose program cannot be installed here are left out, and named. The figures
are written to bench/results/tokens.json, and docs/performance.md shows them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import peers
from cellblock.errors import McpServerError
from cellblock.tools.apigen.package import write_package
from cellblock.tools.apigen.render import render
from cellblock.tools.calling import search
from cellblock.tools.calling.content import ToolSpec
from cellblock.tools.mcp.params import parse_params
from cellblock.tools.mcp.servers import Servers

_RESULTS = Path(__file__).parent / "results" / "tokens.json"
_NPM = (
    "@anthropic-ai/tokenizer",
    "@brave/brave-search-mcp-server",
    "@modelcontextprotocol/server-everything",
    "@modelcontextprotocol/server-filesystem",
    "@modelcontextprotocol/server-github",
    "@modelcontextprotocol/server-memory",
    "@modelcontextprotocol/server-sequential-thinking",
)
_PIP = ("mcp-server-time", "mcp-server-git", "mcp-server-fetch", "mcp-server-sqlite", "mcp<2")
_SERVERS: dict[str, tuple[str, ...]] = {
    "time": ("mcp-server-time",),
    "git": ("mcp-server-git",),
    "fetch": ("mcp-server-fetch",),
    "sqlite": ("mcp-server-sqlite", "--db-path", "{home}/notes.db"),
    "everything": ("mcp-server-everything",),
    "filesystem": ("mcp-server-filesystem", "{home}"),
    "memory": ("mcp-server-memory",),
    "sequential-thinking": ("mcp-server-sequential-thinking",),
    "github": ("mcp-server-github",),
    "brave-search": ("brave-search-mcp-server", "--transport", "stdio"),
}

_TASKS = ("commits of a git repository", "create a pull request", "convert time between time zones", "search the web")

# What ipybox's generator writes, by the functions that it writes it with.
_THEIRS = """
import json, sys
from mcpygen.apigen import generate_function_definition, generate_input_model_code, generate_output_model_code, strip_imports
written = []
for tool in json.load(sys.stdin):
    parts = [generate_input_model_code(tool["input_schema"])]
    if tool["output_schema"]:
        parts.append(strip_imports(generate_output_model_code(tool["output_schema"])))
    parts.append(generate_function_definition(tool["name"], tool["description"], bool(tool["output_schema"])))
    written.append("\\n\\n".join(parts))
json.dump(written, sys.stdout)
"""
_COUNT = """
import { countTokens } from '@anthropic-ai/tokenizer'
import fs from 'fs'
const counted = texts => texts.reduce((sum, text) => sum + countTokens(text), 0)
console.log(JSON.stringify(JSON.parse(fs.readFileSync(0)).map(counted)))
"""


def _install(home: Path) -> None:
    if (home / "installed.txt").exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    (home / "package.json").write_text('{"type": "module"}')
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *_NPM], cwd=home, check=True)
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    subprocess.run([home / "venv" / "bin" / "pip", "install", "--quiet", *_PIP], check=True)
    (home / "count.mjs").write_text(_COUNT)
    (home / "installed.txt").write_text("")


async def _tools(name: str, home: Path) -> list[ToolSpec]:
    program, *arguments = _SERVERS[name]
    places = (home / "venv" / "bin" / program, home / "node_modules" / ".bin" / program)
    params: dict[str, Any] = {
        "command": str(next(place for place in places if place.exists())),
        "args": [argument.format(home=home) for argument in arguments],
        "env": {"BRAVE_API_KEY": "none"} if name == "brave-search" else {},
    }
    async with Servers(lambda _: parse_params(name, params), connect_timeout=60) as servers:
        return await servers.list_tools(name)


def _definitions(tools: list[ToolSpec]) -> str:
    """Return what a client shows a model of tools that it has not hidden behind code."""
    shown = [{"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema} for tool in tools]
    return json.dumps(shown, separators=(",", ":"))


def _searched(found: dict[str, list[ToolSpec]], words: str) -> str:
    """Return what `search_tools` shows for a task: tools by words, the signatures of two, and the module of one."""
    with TemporaryDirectory() as root:
        for server, tools in found.items():
            write_package(root, server.replace("-", "_"), tools)
        names = search.names(words, root_dir=root)
        signatures = search.signatures(*names[:2], root_dir=root)
        return "\n".join([*names, *signatures, search.interface(names[0], root_dir=root)])


def _counted(home: Path, modules: list[list[str]]) -> list[int]:
    done = subprocess.run(
        ["node", "count.mjs"], cwd=home, input=json.dumps(modules), capture_output=True, text=True, check=True
    )
    counts: list[int] = json.loads(done.stdout)
    return counts


async def main(home: Path) -> None:
    """Print a line for each server, and write all of them down."""
    _install(home)
    theirs_python = peers.python()
    measured = []
    found: dict[str, list[ToolSpec]] = {}
    print(f"{'server':22}{'tools':>6}{'cellblock':>11}{'ipybox':>8}{'ratio':>7}")
    for name in _SERVERS:
        try:
            tools = await _tools(name, home)
        except (McpServerError, StopIteration) as error:
            print(f"{name:22}left out: {str(error).splitlines()[0] if str(error) else 'not installed'}")
            continue
        found[name] = tools
        given = json.dumps([asdict(tool) for tool in tools])
        done = subprocess.run([theirs_python, "-c", _THEIRS], input=given, capture_output=True, text=True, check=True)
        ours, theirs = _counted(home, [[module.source for module in render(tools)], json.loads(done.stdout)])
        print(f"{name:22}{len(tools):6}{ours:11}{theirs:8}{ours / theirs:7.2f}", flush=True)
        measured.append({"server": name, "tools": len(tools), "cellblock": ours, "ipybox": theirs})
    versions = peers.versions(theirs_python, ("ipybox", "mcpygen"))
    definitions, *searches = _counted(
        home, [[*map(_definitions, found.values())], *([_searched(found, task)] for task in _TASKS)]
    )
    print(
        f"{definitions} tokens of definitions; a search shows",
        ", ".join(f"{task!r}: {n}" for task, n in zip(_TASKS, searches, strict=True)),
    )
    searched = {"definitions": definitions, "tasks": dict(zip(_TASKS, searches, strict=True))}
    _RESULTS.write_text(json.dumps({"versions": versions, "servers": measured, "search": searched}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / ".tokens").absolute()))
