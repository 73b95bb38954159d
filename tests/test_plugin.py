"""The plugin for Claude Code, and what the documents tell people to write into the files of their clients."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest
import typer
from mcp import Client, StdioServerParameters

from cellblock import __version__
from cellblock.fronts.cli.app import app
from mcp_clients import PATIENT, run, text

ROOT = Path(__file__).parent.parent
PLUGINS = sorted(path.parent.parent for path in ROOT.glob("plugin/*/.claude-plugin/plugin.json"))
GUIDE = (ROOT / "docs" / "mcp-server.md").read_text()
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
SKILL = (ROOT / "plugin" / "codeact" / "skills" / "codeact" / "SKILL.md").read_text()
PLACE = re.compile(r"/path/to/workspace|/app/workspace|\$\{workspaceFolder\}|\$\{CLAUDE_PROJECT_DIR\}")
BLOCK = re.compile(r"^ *```(json|toml|python)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def test_the_marketplace_lists_every_plugin() -> None:
    market = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())
    assert [ROOT / entry["source"] for entry in market["plugins"]] == PLUGINS
    for entry, plugin in zip(market["plugins"], PLUGINS, strict=True):
        assert json.loads((plugin / ".claude-plugin" / "plugin.json").read_text())["name"] == entry["name"] == plugin.name


def test_what_both_plugins_have_is_the_same() -> None:
    other = ROOT / "plugin" / "codeact-container"
    assert (other / "skills" / "codeact" / "SKILL.md").read_text() == SKILL
    assert (other / "seccomp.json").read_bytes() == (ROOT / "deploy" / "seccomp.json").read_bytes()


def commands() -> list[list[str]]:
    """Return the commands that the plugins and the guide start the server with."""
    found = [json.loads((plugin / ".mcp.json").read_text()) for plugin in PLUGINS]
    for kind, block in BLOCK.findall(GUIDE):
        if kind != "python":
            found.append(json.loads(block) if kind == "json" else tomllib.loads(block))
    servers = [servers["cellblock"] for data in found if isinstance(servers := next(iter(data.values())), dict)]
    typed = [shlex.split(line) for line in re.findall(r"^claude mcp add cellblock -- (.+)$", GUIDE, re.MULTILINE)]
    return [[server["command"], *server["args"]] for server in servers] + typed


def arguments() -> list[list[str]]:
    """Return what these commands pass to `cellblock`."""
    return [command[len(command) - command[::-1].index("cellblock") :] for command in commands()]


def test_the_command_line_knows_what_every_client_passes() -> None:
    group = typer.main.get_command(app)
    assert len(arguments()) == 6
    for name, *options in arguments():
        with group.make_context("cellblock", [name, *options]):
            command = group.commands[name]  # type: ignore[attr-defined]
            parsed = command.make_context(name, [*options]).params
        assert (name, len(options)) == ("mcp", 2)
        assert parsed["workspace"] == Path(options[1])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
@pytest.mark.sampled(3)
async def test_what_a_client_starts_runs_code_in_both_eras(number: int, tmp_path: Path) -> None:
    # As a client would: in the directory of a project, with few variables, and with its placeholders replaced.
    (project := tmp_path / "project").mkdir()
    (programs := tmp_path / "bin").mkdir()
    for program, before in (("cellblock", ":"), ("docker", 'while [ "$1" != cellblock ]; do shift; done; shift 2')):
        (programs / program).write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} -m cellblock "$@"\n')
        (programs / program).chmod(0o755)
    command = [PLACE.sub(str(project), part) for part in commands()[number]]
    server = StdioServerParameters(
        command=str(programs / command[0]),
        args=command[1:],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=project,
    )
    for mode in ("auto", "legacy"):
        async with Client(server, mode=mode, client_info=PATIENT) as client:
            assert "reset" in {tool.name for tool in (await client.list_tools()).tools}
            assert text(await run(client, "import os; os.getcwd()")) == repr(str(project))


def test_the_entry_for_the_registry_of_servers() -> None:
    entry = json.loads((ROOT / "server.json").read_text())
    (package,) = entry["packages"]
    # What the registry checks: its schema, and that the README of the package names the server.
    assert entry["$schema"] == "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", entry["name"])
    assert f"mcp-name: {entry['name']} " in (ROOT / "README.md").read_text()
    owner = REPOSITORY.split("/")[3]
    assert (entry["name"], entry["repository"]["url"]) == (f"io.github.{owner}/cellblock", REPOSITORY)
    assert 0 < len(entry["description"]) <= 100
    assert entry["version"] == package["version"] == __version__
    assert (package["registryType"], package["identifier"]) == ("pypi", "cellblock")
    assert package["transport"] == {"type": "stdio"}
    positional, named = package["packageArguments"]
    assert (positional["type"], named["type"]) == ("positional", "named")
    assert (positional["value"], named["name"]) == tuple(arguments()[0][:2])


def test_the_skill_is_described_within_limits() -> None:
    _, front, text = SKILL.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert fields["name"] == "codeact"
    assert len(fields["description"]) < 1024
    assert len(text) < 20_000


def test_the_code_of_the_skill_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tool = Path("mcptools/github")
    tool.mkdir(parents=True)
    for package in (tool.parent, tool):
        (package / "__init__.py").touch()
    (tool / "search_repositories.py").write_text(
        "import json\n"
        "class Params:\n    def __init__(self, query): self.query = query\n"
        "def run(params):\n"
        "    return json.dumps({'items': [{'name': 'a', 'stargazers_count': 1}, {'name': 'b', 'stargazers_count': 2}]})\n"
    )
    forget_packages()
    for kind, code in BLOCK.findall(SKILL):
        if kind == "python" and "actions.save" in code:
            exec(code if "import actions" in code else f"from cellblock.tools import actions\n{code}", {})
    run = import_module("gentools.github.top_repositories").run
    assert [(found.name, found.stars) for found in run("ann", top=1)] == [("b", 2)]
    forget_packages()  # other tests have such packages, too


def forget_packages() -> None:
    """Forget the packages of tools and actions that were imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("gentools", "mcpparse", "mcptools")]:
        del sys.modules[name]
    invalidate_caches()


@pytest.mark.npm
@pytest.mark.parametrize("place", [ROOT, *PLUGINS], ids=lambda path: path.name)
def test_claude_code_finds_nothing_wrong(place: Path) -> None:
    claude = shutil.which("claude")
    assert claude is not None, "npm has not brought claude: see .ci/install"
    checked = subprocess.run(
        [claude, "plugin", "validate", str(place), "--strict"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
