"""A daemon whose installation was replaced hands its sessions over, and loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.host.survival import keeping
from cellblock.operations.base import PROTOCOL
from cellblock.service.daemon import handover
from cellblock.service.daemon.handover import Handover
from processes import eventually
from suite import first_quick

ROOT = Path(__file__).parents[3]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that installations write, and the only one."""
    file = tmp_path / "RECORD"
    file.write_text("1")

    monkeypatch.setattr(handover, "_installed_files", lambda: [str(file)])
    return file


def answer(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Have the new installation answer by a program."""
    monkeypatch.setattr(handover, "_ASK", program)


async def test_as_long_as_nothing_is_installed_nothing_is_handed_over(watched: Path) -> None:
    one = Handover()
    assert not one.replaced
    assert not await one.possible([], 0)
    assert one.problem == ""


async def test_an_installation_of_the_same_version_takes_over_when_nothing_would_be_lost(watched: Path) -> None:
    one = Handover()
    watched.write_text("22")
    assert one.replaced
    assert not await one.possible(["session 'a': it waits for a decision"], 0)
    assert "It waits for: session 'a': it waits for a decision" in one.problem
    assert await one.possible([], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "why"),
    first_quick(
        [
            ("raise ImportError('no module here')", "does not start, or is another version (ImportError: no module here)"),
            ("""print('{"version": "9.9", "sessions": -1, "wire": 4}')""", "9.9, cannot continue"),
            ("print(1)", "does not start"),
        ]
    ),
)
async def test_an_installation_that_cannot_continue_is_told(
    watched: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    answer(monkeypatch, program)
    one = Handover()
    watched.write_text("22")
    assert not await one.possible([], 0)
    assert why in one.problem
    assert "first save what you need" in one.problem
    monkeypatch.undo()  # it is complete now, with the same files
    assert await one.possible([], 0)


@pytest.mark.slow
async def test_an_installation_that_is_taken_back_is_no_problem(watched: Path) -> None:
    one = Handover()
    first = watched.stat()
    watched.write_text("22")
    await one.possible(["something"], 0)
    assert one.problem
    watched.write_text("1")
    os.utime(watched, ns=(first.st_atime_ns, first.st_mtime_ns))
    assert not await one.possible([], 0)
    assert one.problem == ""


class Project:
    """A clone with an environment of its own, as a reader of README.md makes it."""

    def __init__(self, directory: Path) -> None:
        self.clone, self.venv, self.workspace = (directory / name for name in ("clone", "venv", "workspace"))
        ignored = shutil.ignore_patterns(".git", ".venv*", "node_modules", "tests", "docs", "bench", "build", "*.egg-info")
        shutil.copytree(ROOT, self.clone, ignore=ignored)
        self.workspace.mkdir()
        self.environment = {**os.environ, "CELLBLOCK_HOME": str(directory / "home")}
        self.environment.pop("PYTHONPATH", None)

    def make_venv(self) -> None:
        """Make the environment anew."""
        shutil.rmtree(self.venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], check=True)

    def install(self, *how: str) -> None:
        """Install the clone."""
        pip = [sys.executable, "-m", "uv", "pip", "install", "-q", "--system-certs", "--python", f"{self.venv}/bin/python"]
        subprocess.run([*pip, "--reinstall-package", "cellblock", *how], check=True, cwd=self.clone)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        command = [f"{self.venv}/bin/cellblock", *arguments]
        return subprocess.run(command, cwd=self.workspace, env=self.environment, capture_output=True, text=True, check=False)

    def cellblock(self, *arguments: str) -> str:
        """Run the command, which must succeed; return what it prints."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def change(self, path: str, old: str, new: str) -> None:
        """Change one place of the clone."""
        file = self.clone / path
        before = file.read_text()
        assert before.count(old) == 1
        file.write_text(before.replace(old, new))

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cellblock("daemon", "status", "--json"))
        return found


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    one = Project(tmp_path)
    one.make_venv()
    one.install(".")
    yield one
    one.cellblock("daemon", "stop")


WAITS = """
import os, time
y = 1
while not os.path.exists('go'):
    time.sleep(0.05)
print('whole', y)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_sessions_go_on_whenever_cellblock_is_installed_again(project: Project) -> None:
    assert project.cellblock("exec", "demo", "x = 0; x") == "0\n"
    daemons = [project.about()["pid"]]
    with subprocess.Popen(
        [f"{project.venv}/bin/cellblock", "exec", "--timeout", "900", "runs", WAITS],
        cwd=project.workspace,
        env=project.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        await eventually(lambda: project.about()["running"] is True and project.about()["executions"] == 1)
        for number, how in enumerate(("editable", "anew")):
            if how == "anew":
                project.make_venv()
            project.install(*(["--editable"] if how == "editable" else []), ".")
            assert project.cellblock("exec", f"new{number}", "1 + 1") == "2\n"
            assert project.cellblock("exec", "demo", "x += 1; x") == f"{number + 1}\n"
            about = project.about()
            assert about["problems"] == []
            daemons.append(about["pid"])
        (project.workspace / "go").write_text("")
        assert running.communicate(timeout=120)[0] == "whole 1\n"
    assert len({*daemons}) == len(daemons)
    assert project.cellblock("exec", "runs", "y") == "1\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_what_would_be_lost_is_waited_for_and_named(project: Project) -> None:
    project.cellblock("exec", "demo", "x = 41")
    before = project.about()["pid"]
    with subprocess.Popen(
        [
            f"{project.venv}/bin/cellblock",
            "exec",
            "asks",
            "!echo yes",
            "-o",
            "approve_shell_cmds=true",
            "-o",
            "approval_timeout=900",
        ],
        cwd=project.workspace,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as asking:

        def pending() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = json.loads(project.cellblock("approvals", "pending", "--json"))["pending"]
            return found

        await eventually(lambda: bool(pending()))
        project.install(".")
        await eventually(lambda: "session 'asks': it waits for a decision" in str(project.about()["problems"]))
        assert project.about()["pid"] == before
        assert "session 'asks': it waits for a decision" in project.cellblock("doctor")
        project.cellblock("approvals", "allow", pending()[0]["id"])
        assert asking.communicate(timeout=120)[0] == "yes\n"
    assert project.cellblock("exec", "demo", "x + 1") == "42\n"
    await eventually(lambda: project.about()["pid"] != before)
    assert project.about()["problems"] == []
    assert project.cellblock("exec", "demo", "x + 2") == "43\n"


def change_version(project: Project, *, back: bool = False) -> None:
    """Install an older version, with another protocol and another form of what it keeps of kernels; or this one again."""
    for path, ours, other in (
        ("src/cellblock/common/version.py", f'"{cellblock.__version__}"', '"0.0.1"'),
        ("src/cellblock/operations/base.py", f"PROTOCOL = {PROTOCOL}\n", f"PROTOCOL = {PROTOCOL - 1}\n"),
        ("src/cellblock/host/survival/keeping.py", f"FORMAT = {keeping.FORMAT}\n", f"FORMAT = {keeping.FORMAT - 1}\n"),
    ):
        project.change(path, *((other, ours) if back else (ours, other)))
    project.install(".")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_another_version_cannot_continue_is_named_before_it_is_lost(project: Project) -> None:
    """An upgrade, and then a downgrade: durable sessions go on, and the loss of the others is told first and afterwards."""
    change_version(project)
    project.cellblock("exec", "kept", "-o", "durable=true", "y = 7")
    for back in (True, False):
        project.cellblock("exec", "plain", "x = 41")
        change_version(project, back=back)
        refused = project.run("exec", "plain", "x")
        assert refused.returncode != 0
        assert "'cellblock daemon restart' replaces it" in refused.stderr
        assert "the variables of all others are lost, unless they are saved before" in refused.stderr
        project.cellblock("daemon", "restart")
        assert project.cellblock("exec", "kept", "y") == "7\n"
        lost = project.run("exec", "plain", "x")
        assert "NameError" in lost.stdout + lost.stderr
        assert "its earlier kernel had ended; a fresh kernel without variables runs now" in lost.stdout + lost.stderr
