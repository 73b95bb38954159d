"""The terminal front, as a person and as a program use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cellblock
from cellblock import Approvals, Decision
from cellblock.cli import main
from cellblock.sandbox import landlock
from cli_runs import run_here


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cellblock", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_doctor_says_that_kernels_can_be_sandboxed_here() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "native sandbox" in done.stdout
    assert done.stdout.rstrip().endswith("Kernels run in a sandbox here.")


def test_doctor_speaks_to_programs() -> None:
    found = json.loads(run("doctor", "--json").stdout)
    assert found["ok"] is True
    assert found["sandbox"] is True
    assert found["session"]["ok"]
    assert {step["state"] for step in found["session"]["steps"]} == {"ok"}
    assert {"operating system", "Python", "IPython", "native sandbox"} <= {check["name"] for check in found["checks"]}


def test_doctor_says_which_step_fails_and_what_to_do() -> None:
    """The limit is one of the user namespace that it is written in."""
    limited = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"']
    command = [*limited, "sh", sys.executable, "-m", "cellblock", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed       make a user namespace" in done.stdout
    assert "not reached  run a first cell" in done.stdout
    assert "Likely cause: The setting user.max_user_namespaces is 0" in done.stdout
    assert "    sudo sysctl -w user.max_user_namespaces=10000\n" in done.stdout
    last = done.stdout.rstrip().splitlines()[-1]
    assert last.startswith("No kernel starts here with isolate='native'")
    assert last.endswith("export CELLBLOCK_ISOLATE=landlock") == (not landlock.missing())


@pytest.mark.slow
def test_doctor_judges_the_isolation_that_is_chosen_here() -> None:
    limited = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"']
    command = [*limited, "sh", "env", "CELLBLOCK_ISOLATE=landlock", sys.executable, "-m", "cellblock", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    states = {check["name"]: (check["ok"], check["needed"]) for check in found["checks"]}
    assert states["native sandbox"] == (False, False)
    assert states["landlock sandbox"] == (landlock.missing() == (), True)
    assert done.returncode == (0 if found["ok"] else 1)
    assert found["sandbox"] == (landlock.missing() == ())


@pytest.mark.skipif(bool(landlock.missing()), reason="; ".join(landlock.missing()))
@pytest.mark.slow
def test_doctor_does_not_propose_what_is_chosen_already() -> None:
    limited = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"']
    command = [*limited, "sh", "env", "CELLBLOCK_ISOLATE=landlock", sys.executable, "-m", "cellblock", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The native sandbox, which promises more, is not possible here:" in done.stdout
    assert "MISSING" not in done.stdout
    assert "export CELLBLOCK_ISOLATE=landlock" not in done.stdout
    assert done.stdout.rstrip().endswith("Kernels run in a sandbox here, with isolate='landlock'.")


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
    assert f"Landlock cannot keep {tmp_path}/.env from a session" in done.stderr


def test_the_default_policy_is_shown_for_a_workspace(tmp_path: Path) -> None:
    done = run_here("policy", "show", "--workspace", str(tmp_path))
    assert done.returncode == 0, done.stderr
    writable = done.stdout.partition("Writable:\n")[2].splitlines()[0].strip()
    assert writable == str(tmp_path)
    assert f"{tmp_path}/.env" in done.stdout.partition("Masked:\n")[2]
    assert done.stdout.partition("Reachable on the network:\n")[2].splitlines()[0].strip() == "nothing"


def test_a_configuration_is_shown_for_programs(tmp_path: Path) -> None:
    config = tmp_path / "sandbox.json"
    config.write_text(json.dumps({"filesystem": {"allowWrite": ["."]}, "network": {"allowedDomains": ["example.org"]}}))
    found = json.loads(run_here("policy", "show", str(config), "--workspace", str(tmp_path), "--json").stdout)
    assert found["reachable"] == ["example.org"]
    assert found["writable"] == [str(tmp_path)]
    assert found["readable"] == ["/ (everything but what is masked)"]


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "there is no command 'nosuch' (see 'cellblock --help')"),
        (["lsit"], "there is no command 'lsit'; did you mean 'list'? (see 'cellblock --help')"),
        (["files", "lss"], "there is no command 'lss'; did you mean 'ls'? (see 'cellblock files --help')"),
        (["doctor", "--nosuch"], "no such option: --nosuch (see 'cellblock doctor --help')"),
        (["attach"], "missing argument 'NAME' (see 'cellblock attach --help')"),
        (["attach", "a"], "attach needs a terminal; for programs there is 'cellblock exec --name a CODE'"),
        (["completion", "tcsh"], "there is no completion for 'tcsh': it is one of bash, zsh, fish, powershell"),
    ],
)
def test_wrong_usage_is_one_line_with_the_way_out(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"cellblock: {said}\n")


@pytest.mark.parametrize("arguments", [[], ["policy"], ["files"]])
def test_no_command_shows_which_there_are(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    assert "Commands" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cellblock {cellblock.__version__}\n"


def test_settings_are_shown_with_where_they_are_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_MAX_RETRIES", "7")
    assert main(["config"]) == 0
    found = {setting["name"]: setting for setting in json.loads(capsys.readouterr().out)["settings"]}
    assert (found["max_retries"]["value"], found["max_retries"]["source"]) == (7, "KERNELBOX_MAX_RETRIES")
    assert found["execution_timeout"]["source"] == "default"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_closed_is_no_error(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m cellblock config {closed}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_knows_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CELLBLOCK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "cellblock st")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert main([]) == 0
    assert capsys.readouterr().out.split() == ["status"]


def test_a_script_for_completion_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CELLBLOCK_COMPLETE", "")  # so that what the command sets is taken back
    assert main(["completion", "bash"]) == 0
    assert "_CELLBLOCK_COMPLETE=complete_bash" in capsys.readouterr().out


def test_help_needs_no_event_loop() -> None:
    script = "import sys; from cellblock.cli import main; main(['--help']); print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


async def test_what_was_decided_is_shown_for_persons_and_for_programs() -> None:
    with Approvals() as trail:
        for number in range(3):
            arguments = b'{"text":"\\u001b[31m%d"}' % number
            await trail.add(Decision("allow", "person", "the session\x1b[1m", "tool", "files", "write", arguments, 1e9))
        await trail.add(Decision("deny", "nobody", "another", "shell", "shell", "shell", b"{}" * 500, 1e9, "no one"))
    lines = run_here("approvals", "--last", "2").stdout.splitlines()
    assert len(lines) == 2
    assert 'allow  files.write {"text":"\\u001b[31m2"}  (person)' in lines[0]
    assert "\x1b" not in lines[0]
    assert lines[1].endswith("…  (nobody: no one)")
    found = json.loads(run_here("approvals", "--session", "another", "--json").stdout)
    assert [(each["outcome"], each["by"], each["arguments"]) for each in found] == [("deny", "nobody", "{}" * 500)]
    assert run_here("approvals", "--session", "nobody's").stdout == "No decision of session nobody's is on record.\n"


@pytest.mark.parametrize("count", ["0", "-1", "many", "1" * 20, "²"])
def test_a_number_of_decisions_that_is_none_is_refused(count: str) -> None:
    done = run_here("approvals", f"--last={count}")
    assert done.returncode == 2
    assert done.stderr.startswith("cellblock: invalid value for '--last'")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        command = [sys.executable, "-m", "cellblock", "policy", "show", "--json", "--workspace", "/srv"]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_new_policy_has_comments_and_starts(tmp_path: Path) -> None:
    assert run_here("policy", "init", cwd=tmp_path).returncode == 0
    file = tmp_path / "sandbox.json"
    assert "// Nothing else can be written." in file.read_text()
    shown = run_here("policy", "show", "sandbox.json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert f"Writable:\n  {tmp_path}\n" in shown.stdout
    assert "metadata services" in shown.stdout.partition("Never reachable:\n")[2].splitlines()[0]
    again = run_here("policy", "init", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (
        2,
        "cellblock: sandbox.json exists already; name another file, or remove it first\n",
    )


def test_a_policy_with_which_nothing_starts_says_why(tmp_path: Path) -> None:
    config = tmp_path / "sandbox.json"
    config.write_text(json.dumps({"filesystem": {"denyRead": [str(tmp_path)]}}))
    done = run_here("policy", "show", str(config), "--workspace", str(tmp_path))
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("No session can start with this policy: PermissionError: ")
    assert last.endswith("(is something that it needs in denyRead?)")


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
