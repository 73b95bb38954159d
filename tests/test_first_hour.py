"""A new user's first hour: README and the first example of each guide work in order, twice, in a git repository.

Those that write nothing work in a read-only directory, too.

A daemon runs meanwhile. ``.ci/as-user`` has an ordinary user play the same.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from test_documents import ROOT, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # 50 s of processor time

READING = (
    "README.md",
    *(f"docs/{name}.md" for name in ("cli", "starting", "sessions", "named-sessions", "checkpoints", "shell")),
)
"""Pages whose first example writes no file."""

WRITING = tuple(f"docs/{name}.md" for name in ("programs", "files", "saving", "rollouts", "migrating"))

_PLAYER = """
import ast, asyncio, sys
run = eval(compile(sys.argv[1], sys.argv[2], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "__main__"})
if run is not None:
    asyncio.run(run)
"""
"""Runs a program as a script, or as ``python -m asyncio`` does if it has an ``await`` outside of functions."""

_CONSOLE = re.compile(r"^```console\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[tuple[str, str]]:
    """Return the commands that a page shows first, each with what it prints."""
    text = (ROOT / page).read_text()
    if page == "README.md":
        return re.findall(r"^\.venv/bin/(cellblock .*?) +# (.*)$", text, re.MULTILINE)
    entries = re.split(r"^\$ ", _CONSOLE.findall(text)[0], flags=re.MULTILINE)[1:] if page == "docs/cli.md" else []
    return [(command, shown.strip()) for command, _, shown in (entry.partition("\n") for entry in entries)]


def first_example(page: str) -> tuple[str, str]:
    """Return the Python of a page up to the first output that it shows, and that output; empty if it has none."""
    code = ""
    for _, part, shown in blocks(ROOT / page):
        code += part
        if shown is not None:
            return code, shown
    return "", ""


@pytest.fixture(params=["git repository", "read-only"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A directory below /tmp."""
    with TemporaryDirectory(dir="/tmp", prefix="first-hour-") as above:
        directory = Path(above, "project")
        directory.mkdir()
        if request.param == "git repository":
            subprocess.run(["git", "init", "--quiet"], cwd=directory, check=True)
        else:
            directory.chmod(0o555)
        yield request.param, directory
        directory.chmod(0o755)


def test_what_pages_show_first_works(place: tuple[str, Path], tmp_path: Path) -> None:
    kind, directory = place
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": programs, "CELLBLOCK_HOME": str(tmp_path / "state")}
    wrong = []
    try:
        for time in (1, 2) if kind == "git repository" else (1,):
            for page in (*READING, *(() if kind == "read-only" else WRITING)):
                code, shown = first_example(page)
                played = [(shlex.split(command), printed) for command, printed in commands(page)]
                played += [([sys.executable, "-c", _PLAYER, code, page], shown)] if code else []
                assert played, page
                for command, expected in played:
                    if (printed := run(command, directory, variables)) != expected.strip():
                        wrong.append(f"{page}, time {time}: {command[:2]}\n{printed}")
    finally:
        run(["cellblock", "daemon", "stop"], directory, variables)
    assert not wrong, "\n\n".join(wrong)


def run(command: list[str], directory: Path, variables: Mapping[str, str]) -> str:
    """Run a program as a new user does; return all that it prints."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return (
        done.stdout.strip()
        if done.returncode == 0 and not done.stderr
        else f"status {done.returncode}: {done.stdout}{done.stderr}"
    )
