"""`cellblock policy`, as a person and as a program use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cellblock.walls.linux import landlock
from cli_runs import run_here


@pytest.mark.slow
@pytest.mark.skipif(bool(landlock.missing()), reason="; ".join(landlock.missing()))
def test_a_policy_is_shown_for_the_isolation_that_is_chosen_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_ISOLATE", "landlock")
    done = run_here("policy", "show", "--workspace", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("With isolate='landlock'")
    assert done.stdout.partition("Writable:\n")[2].splitlines()[0].strip() == str(tmp_path)
    assert "Masked" not in done.stdout
    assert "tmp " not in done.stdout.partition("Limits:\n")[2]
    (tmp_path / ".env").touch()
    done = run_here("policy", "show", "--workspace", str(tmp_path))
    assert done.returncode != 0
    assert f"Landlock cannot protect {tmp_path}/.env from a session" in done.stderr


@pytest.mark.slow
def test_the_default_policy_is_shown_for_a_workspace(tmp_path: Path) -> None:
    done = run_here("policy", "show", "--workspace", str(tmp_path))
    assert done.returncode == 0, done.stderr
    writable = done.stdout.partition("Writable:\n")[2].splitlines()[0].strip()
    assert writable == str(tmp_path)
    assert f"{tmp_path}/.env" in done.stdout.partition("Masked:\n")[2]
    assert done.stdout.partition("Reachable on the network:\n")[2].splitlines()[0].strip() == "nothing"


@pytest.mark.slow
def test_a_configuration_is_shown_for_programs(tmp_path: Path) -> None:
    config = tmp_path / "sandbox.json"
    files = {"allowWrite": ["."], "denyRead": ["/x"], "denyWrite": []}
    config.write_text(json.dumps({"filesystem": files, "network": {"allowedDomains": ["example.org"]}}))
    shown = ("policy", "show", str(config), "--workspace", str(tmp_path))
    (tmp_path / "data").mkdir()
    found = json.loads(run_here(*shown, "--json", "--read", str(tmp_path), "--memory", "1G", "--host", "a.example").stdout)
    assert found["reachable"] == ["example.org", "a.example"]
    assert found["writable"] == [str(tmp_path)]
    assert "/ (everything but what is masked)" not in found["readable"]
    assert found["limits"]["memory"] == 2**30
    assert "code can read every file that this user can read, except /x, .env" in run_here(*shown).stdout
    config.write_text(json.dumps({"defaults": "sandbox-runtime"}))
    assert json.loads(run_here(*shown, "--json").stdout)["readable"] == ["/ (everything but what is masked)"]


def test_a_typo_in_a_configuration_is_named(tmp_path: Path) -> None:
    config = tmp_path / "sandbox.json"
    config.write_text(json.dumps({"network": {"allowedDomain": []}}))
    done = run_here("policy", "show", str(config), "--workspace", str(tmp_path))
    assert done.returncode == 2
    assert "network.allowedDomain is not a known key; did you mean 'allowedDomains'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_of_the_system_is_no_workspace() -> None:
    done = run_here("policy", "show", cwd=Path("/usr"))
    assert done.returncode == 2
    assert "cannot have /usr as its workspace" in done.stderr


@pytest.mark.slow
def test_a_new_policy_has_comments_and_starts(tmp_path: Path) -> None:
    assert run_here("policy", "init", cwd=tmp_path).returncode == 0
    file = tmp_path / "sandbox.json"
    assert "// The only paths that can be written." in file.read_text()
    shown = run_here("policy", "show", "sandbox.json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert f"Writable:\n  {tmp_path}\n" in shown.stdout
    assert "metadata services" in shown.stdout.partition("Never reachable:\n")[2].splitlines()[0]
    again = run_here("policy", "init", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (
        2,
        "cellblock: sandbox.json exists already; name another file, or remove it first\n",
    )


@pytest.mark.slow
def test_a_policy_with_which_nothing_starts_says_why(tmp_path: Path) -> None:
    config = tmp_path / "sandbox.json"
    config.write_text(json.dumps({"filesystem": {"denyRead": [str(tmp_path)]}}))
    done = run_here("policy", "show", str(config), "--workspace", str(tmp_path))
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("No session can start with this policy: PermissionError: ")
    assert last.endswith("(does denyRead contain a path that it needs?)")


def test_an_error_behind_a_comment_names_the_right_line(tmp_path: Path) -> None:
    config = tmp_path / "sandbox.json"
    config.write_text('// One.\n{\n  // Three.\n  "network": nonsense\n}')
    done = run_here("policy", "show", str(config))
    assert done.returncode == 2
    assert "line 4" in done.stderr


def test_a_file_is_no_workspace(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = run_here("policy", "show", "--workspace", str(file))
    assert (done.returncode, done.stderr) == (2, f"cellblock: workspace: {file} is a file, not a directory\n")
