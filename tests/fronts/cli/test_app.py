"""The terminal front, as a person and as a program use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import cellblock
from cellblock import Approvals, Decision
from cellblock.fronts.cli import main
from cellblock.fronts.cli.app import app, made_command
from cli_runs import run_here


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "there is no command 'nosuch' (see 'cellblock --help')"),
        (["lsit"], "there is no command 'lsit'; did you mean 'list'? (see 'cellblock --help')"),
        (["ps"], "there is no command 'ps'; did you mean 'processes'? (see 'cellblock --help')"),
        (["rm", "a"], "there is no command 'rm'; did you mean 'destroy'? (see 'cellblock --help')"),
        (["files", "lss"], "there is no command 'lss'; did you mean 'ls'? (see 'cellblock files --help')"),
        (["doctor", "--nosuch"], "no such option: --nosuch (see 'cellblock doctor --help')"),
        (["attach"], "missing argument 'NAME' (see 'cellblock attach --help')"),
        (
            ["run", "--workspace", "", "script.py"],
            "invalid value for '--workspace': the path is empty; the current directory is '.' (see 'cellblock run --help')",
        ),
        (
            ["exec", "a", "1", "--memory", ""],
            "invalid value for '--memory': the value is empty; leave the option out for its default "
            "(see 'cellblock exec --help')",
        ),
        (
            ["create", "a", "--environment="],
            "invalid value for '--environment': the value is empty; leave the option out for its default "
            "(see 'cellblock create --help')",
        ),
        (
            ["policy", "show", "--workspace="],
            "invalid value for '--workspace': the path is empty; the current directory is '.' "
            "(see 'cellblock policy show --help')",
        ),
        (["attach", "a"], "attach needs a terminal; programs use 'cellblock exec --name a CODE'"),
        (["completion", "tcsh"], "there is no completion for 'tcsh': it is one of bash, zsh, fish, powershell"),
    ],
)
def test_wrong_usage_is_one_line_with_the_way_out(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"cellblock: {said}\n")


@pytest.mark.parametrize(
    ("arguments", "commands"), [([], ["exec", "undo", "files"]), (["policy"], ["show"]), (["files"], ["ls"])]
)
def test_no_command_shows_which_there_are(
    capsys: pytest.CaptureFixture[str], arguments: list[str], commands: list[str]
) -> None:
    assert main(arguments) == 2
    out = capsys.readouterr().out
    assert all(f"│ {command} " in out for command in commands)
    assert "─ Commands ─" not in out or arguments, "each command has its place in the parts of the help"


@pytest.mark.parametrize("command", ["", "exec", "run", "logs", "mcp", "tools add", "tokens create", "daemon logs"])
def test_help_shows_names_of_values_and_no_types(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert not re.findall(r"<(bool|str|int|list)[^>]*>|\[\[", out)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-")), "<&- >&- 2>&-"]
)
def test_what_is_closed_is_no_error(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m cellblock config {closed}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_completion_knows_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CELLBLOCK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "cellblock st")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert main([]) == 0
    assert capsys.readouterr().out.split() == ["status"]


@pytest.mark.slow
def test_a_script_for_completion_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CELLBLOCK_COMPLETE", "")  # so that what the command sets is taken back
    assert main(["completion", "bash"]) == 0
    assert "_CELLBLOCK_COMPLETE=complete_bash" in capsys.readouterr().out


@pytest.mark.slow
def test_help_needs_no_event_loop() -> None:
    script = "import sys; from cellblock.fronts.cli import main; main(['--help']); print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


async def test_what_was_decided_is_shown_for_persons_and_for_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Approvals() as trail:
        blanks = json.dumps({"command": f"echo{' ' * 5000}; rm"}).encode()
        await trail.add(Decision("allow", "person", "blanks", "shell", "shell", "shell", blanks, time.time()))
        for number in range(3):
            arguments = b'{"text":"\\u001b[31m%d"}' % number
            await trail.add(Decision("allow", "person", "the session\x1b[1m", "tool", "files", "write", arguments, 1e9))
        await trail.add(Decision("deny", "nobody", "another", "shell", "shell", "shell", b"{}" * 500, 1e9, "no one"))
    found = json.loads(run_here("approvals", "--session", "another").stdout)
    assert [(each["outcome"], each["by"], each["arguments"]) for each in found] == [("deny", "nobody", "{}" * 500)]
    (whole,) = json.loads(run_here("approvals", "--session", "blanks").stdout)
    assert (found[0]["complete"], whole["complete"], whole["arguments"]) == (False, True, blanks.decode())
    assert json.loads(run_here("approvals", "--session", "nobody's").stdout) == []
    monkeypatch.setattr("cellblock.fronts.cli.output.wants_json", bool)  # as in a terminal
    assert main(["approvals", "--last", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert 'allow  files.write {"text":"\\u001b[31m2"}  (person)' in lines[0]
    assert "\x1b" not in lines[0]
    assert "… [812 more characters: --json shows them; only the beginning of its arguments is on record]" in lines[1]
    assert lines[1].endswith("  (nobody: no one)")
    assert main(["approvals", "--session", "blanks"]) == 0
    assert "echo[5,000 spaces]; rm" in capsys.readouterr().out
    assert main(["approvals", "--session", "nobody's"]) == 0
    assert capsys.readouterr().out == "No decision of session nobody's is recorded.\n"


def test_a_number_of_decisions_that_is_none_is_refused() -> None:
    for count in ("0", "-1", "many", "1" * 20, "²"):
        done = run_here("approvals", f"--last={count}")
        assert done.returncode == 2
        assert done.stderr.startswith("cellblock: invalid value for '--last'")


_WITHOUT_JSON = {
    "actions show": "it prints source code",
    "attach": "it needs a terminal",
    "completion": "it prints a script for a shell",
    "console": "it opens a browser, and serves until it is stopped",
    "daemon logs": "it prints lines of a file",
    "mcp": "it speaks the protocol",
    "open": "it opens a browser, and stays until it is stopped",
    "run": "its output is the program's",
    "serve": "it serves until it is stopped",
}


def test_every_command_prints_json_if_asked_to() -> None:
    def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, *path, name)
            else:
                yield " ".join([*path, name]), command

    without = [
        name
        for name, command in commands(typer.main.get_command(app))
        if not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert sorted(without) == sorted(_WITHOUT_JSON)


def test_every_name_of_a_session_is_completed() -> None:
    missing: list[str] = []

    def look(command: Any, path: str) -> None:
        for name, below in getattr(command, "commands", {}).items():
            look(below, f"{path} {name}")
        for parameter in command.params:
            names_one = "NAME" in (parameter.metavar or "") and "session" in (getattr(parameter, "help", None) or "").lower()
            if names_one and parameter._custom_shell_complete is None:
                missing.append(f"{path} {parameter.metavar}")

    look(made_command(), "cellblock")
    assert missing == ["cellblock load NAME"]  # the name of a new session
