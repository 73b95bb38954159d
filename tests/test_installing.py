"""Commands that install cellblock work as they are written: in documents, plugins and messages, from a clone or a path."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PUBLISHED = False
"""Whether a package index has this project: then its name alone can be installed, too."""

TEXTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *(path for folder in ("plugin", "deploy", "examples") for path in (ROOT / folder).rglob("*") if path.is_file()),
]
UV = [sys.executable, "-m", "uv", "--system-certs", "--no-progress"]
_INSTALL = re.compile(
    r"(?<![\w-])((?:uv )?pip3? install|pipx (?:install|run)|uv (?:tool (?:install|run)|add)|uvx)(?![\w-])"
    r"((?:[ \t]|\\\n)[^`\n|&;#]*)"
)
_EXTRAS = re.compile(r"(?P<what>[^\[\]]*)\[(?P<extras>[\w, -]+)\]$")
_RUNNERS = ("uvx", "uv tool run", "pipx run")
_PLACES = ("/", "./", "../", "~", "git+", "$")


def faults(text: str) -> list[str]:
    """Return the commands in a text that would not install this project, or not run it, and why."""
    # A client's settings have the program and its arguments apart.
    together = re.sub(r'"(uvx|pipx)",?\s*"?args"?\s*[:=]\s*\[', r"\1 ", text)
    found = [
        f"{command[0].strip()}: {reason}"
        for command in _INSTALL.finditer(together)
        if (reason := _fault(command[1], _words(command[2])))
    ]
    alone = [] if PUBLISHED else re.findall(r"(?<![\w./])cellblock\[[\w,]+\]", text)
    return found + [f"{name}: no index has it" for name in alone]


def _words(line: str) -> list[str]:
    words = [word.strip("\"',.()") if word not in (".", "'.'") else "." for word in line.replace('",', '" ').split()]
    return [word for word in words if word]


def _fault(program: str, words: list[str]) -> str:
    if program in _RUNNERS:
        source = words[words.index("--from") + 1] if "--from" in words[:-1] else ""
        rest = words[words.index("--from") + 2 :] if source else [word for word in words if not word.startswith("-")]
        if source and "cellblock" in source.lower() and rest[:1] and rest[0] not in PROJECT["scripts"]:
            return f"the package has no command {rest[0]!r}"
        words = [source] if source else rest[:1]
    return next((reason for word in words if (reason := _unknown(word))), "")


def _unknown(requirement: str) -> str:
    """Return why a requirement cannot be installed, if it is this project."""
    match = _EXTRAS.match(requirement)
    what, extras = (match["what"], match["extras"].split(",")) if match else (requirement, [])
    name = re.split(r"[=<>~!@; ]", what)[0]
    is_place = what in (".", "") or what.startswith(_PLACES)
    if name == PROJECT["name"] and not PUBLISHED:
        return "no index has it"
    if (name == PROJECT["name"] or is_place) and (missing := {*extras} - {*PROJECT["optional-dependencies"]}):
        return f"it has no extra {sorted(missing)}"
    return ""


def test_a_command_that_does_not_work_is_found() -> None:
    cases: list[str] = [
        "run `uvx cellblock mcp`",
        "pip install cellblock",
        "python -m pip install --quiet 'cellblock[jupyter]' jupyterlab",
        "uv pip install cellblock>=0.1",
        "uv tool install cellblock",
        "pipx run cellblock mcp",
        '{"command": "uvx", "args": ["cellblock", "mcp"]}',
        'command = "uvx"\nargs = ["cellblock", "mcp"]',
        "uvx --from cellblock cellblock mcp",
        "uvx --from /path/to/cellblock cell mcp",
        "pip install '.[jupiter]'",
        "install 'cellblock[kernels]' there",
    ]
    for wrong in cases:
        assert faults(wrong)


def test_a_command_that_works_is_no_fault() -> None:
    cases: list[str] = [
        "`uvx` comes with uv; uvx ipybox",
        "pip install . && cellblock doctor",
        "pip install '.[jupyter]' jupyterlab",
        "uv tool install /path/to/cellblock",
        "uvx --from /path/to/cellblock cellblock mcp --workspace .",
        '{"command": "uvx", "args": ["--from", "/path/to/cellblock", "cellblock", "mcp"]}',
        "pip install mcp-server-time",
    ]
    for right in cases:
        assert faults(right) == []


def test_documents_and_plugins_install_what_there_is() -> None:
    found = {str(path.relative_to(ROOT)): wrong for path in TEXTS if (wrong := faults(path.read_text(errors="replace")))}
    assert found == {}


def strings(source: str) -> Iterator[str]:
    """Yield the texts in a module: messages and docstrings, those of several parts as one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]


@pytest.mark.slow
def test_messages_install_what_there_is() -> None:
    sources = {path.name: path.read_text() for path in (ROOT / "src" / "cellblock").rglob("*.py")}
    texts = [(name, text) for name, source in sources.items() if "install" in source for text in strings(source)]
    found = {name: wrong for name, text in texts if "install" in text if (wrong := faults(text))}
    assert found == {}


FEATURES = {
    "client": (["python", "-c", "import cellblock; cellblock.Client('http://127.0.0.1:1').close()"], ""),
    "mcp": (["cellblock", "mcp"], ""),
    "serve": (["cellblock", "serve", "--no-auth", "--host", "0.0.0.0"], "without tokens"),
}
"""Extra → a command that needs it and ends, and what it says if the extra is there."""

BROUGHT: dict[str, set[str]] = {
    "": set(),
    "client": {"client"},
    "mcp": {"client", "mcp"},
    "serve": {"client", "serve"},
    "all": {*FEATURES},
}
"""Installed extra → the extras whose features work."""

MOST_PACKAGES = 35
MOST_MB = 50
"""A plain installation's files, without bytecode. Bytecode adds a half."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package as a wheel. Installing the directory could install an older wheel of it from uv's cache."""
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run([*UV, "build", "--quiet", "--wheel", "--out-dir", place, ROOT], check=True)
    return next(place.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("extra", BROUGHT)
def test_an_installation_names_extras_that_it_lacks(wheel: Path, tmp_path: Path, extra: str) -> None:
    place = tmp_path / "project"
    programs = place / ".venv" / "bin"
    subprocess.run([*UV, "venv", "--quiet", "--python", sys.executable, programs.parent], check=True)
    wanted = f"{wheel}[{extra}]" if extra else wheel
    subprocess.run([*UV, "pip", "install", "--quiet", "--python", programs / "python", wanted], check=True)
    environment = {**os.environ, "CELLBLOCK_HOME": str(tmp_path / "home"), "COLUMNS": "100"}
    environment.pop("PYTHONPATH", None)

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of the installation, in its directory and without input."""
        return subprocess.run(command, cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    if not extra:
        files = [path for path in (programs.parent / "lib").rglob("*") if path.is_file()]
        assert len({path.parent for path in files if path.match("*.dist-info/METADATA")}) <= MOST_PACKAGES
        assert sum(path.stat().st_size for path in files if path.suffix != ".pyc") < MOST_MB * 1e6
    try:
        first = next(line for line in (ROOT / "README.md").read_text().splitlines() if " exec demo " in line)
        command, _, answer = first.partition("#")
        done = run(["sh", "-c", command])
        assert done.stdout == f"{answer.strip()}\n", done.stderr
        assert "exec" in run([f"{programs}/cellblock", "--help"]).stdout
        assert "Kernels run in a sandbox here" in run([f"{programs}/cellblock", "doctor"]).stdout
        assert run([f"{programs}/python", "-c", "from cellblock import *; Client, ToolServer, KernelGateway"]).returncode == 0
        for needed, ((program, *arguments), said) in FEATURES.items():
            done = run([f"{programs}/{program}", *arguments])
            missing = f" need an extra: pip install 'cellblock[{needed}]'"
            assert (missing in done.stderr) == (needed not in BROUGHT[extra]), done.stderr
            assert missing in done.stderr or (said in done.stderr and "Traceback" not in done.stderr), done.stderr
    finally:
        run([f"{programs}/cellblock", "daemon", "stop"])


def test_the_entry_for_the_registry_runs_what_the_package_has() -> None:
    # The registry takes an entry only once the index has the package, and clients run `uvx OPTIONS IDENTIFIER ARGUMENTS`. An
    # identifier has no extras.
    (package,) = json.loads((ROOT / "server.json").read_text())["packages"]
    assert (package["identifier"], package["runtimeHint"]) == (PROJECT["name"], "uvx")
    assert package["identifier"] in PROJECT["scripts"]
    ((option, extra),) = ((each["name"], each["value"]) for each in package["runtimeArguments"])
    assert (option, extra) == ("--with", f"{PROJECT['name']}[mcp]")
