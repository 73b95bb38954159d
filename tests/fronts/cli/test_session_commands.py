"""The commands about sessions and the daemon, as a program uses them, and what people see of them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.fronts.cli import main
from gateways import own_gateway, token
from terminals import cellblock as command
from terminals import terminal

pytestmark = pytest.mark.usefixtures("daemon")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status = main(arguments)
    return status, json.loads(capsys.readouterr().out)


def test_the_life_of_a_session_as_kernelbox_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, made = run(capsys, "create", "--name", "my-kernel", "--tag", "team=a")
    assert (status, made["name"], made["session_name"], made["tags"]) == (0, "my-kernel", "my-kernel", {"team": "a"})
    status, found = run(capsys, "status", "--name", "my-kernel")
    assert (status, found["alive"], found["kernel"]["kernel_id"]) == (0, True, made["kernel_id"])
    cellblock.execute("my-kernel", "x = 1")
    assert run(capsys, "interrupt", "my-kernel") == (1, {"interrupted": False})
    assert run(capsys, "restart", "--id", made["kernel_id"])[1]["kernel_id"] == made["kernel_id"]
    assert cellblock.execute("my-kernel", "'x' in globals()").return_value == "False"
    status, listed = run(capsys, "list", "--refresh")
    assert [kernel["name"] for kernel in listed["kernels"]] == ["my-kernel"]
    assert run(capsys, "destroy", "--name", "my-kernel") == (0, {"destroyed": True})
    assert run(capsys, "destroy", "my-kernel") == (1, {"destroyed": False})


@pytest.mark.slow
def test_several_are_ended_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        run(capsys, "create", name)
    assert run(capsys, "destroy", "one", "two", "one") == (0, {"destroyed": ["one", "two"], "missing": []})
    assert main(["destroy", "gone", "three", "missing"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"destroyed": ["three"], "missing": ["gone", "missing"]}
    gone, missing = shown.err.splitlines()
    assert gone == "cellblock: there is no session 'gone'"
    assert missing.startswith("cellblock: there is no session 'missing'; there are no sessions yet")
    assert main(["destroy", "one", "--name", "two"]) == 2


def test_no_name_at_all_says_how_to_give_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["destroy"]) == 2
    said = "cellblock: name one session, as NAME, --name NAME or --id ID ('cellblock list' shows them)\n"
    assert capsys.readouterr().err == said


@pytest.mark.slow
def test_no_front_has_a_session_work_in_the_home_directory_unless_it_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = "contains your home directory, .* change to the directory of a project, or name one"
    monkeypatch.chdir(Path.home())
    for arguments in (["create", "at-home"], ["exec", "--name", "at-home", "1"]):
        assert main(arguments) == 2
        assert re.search(advice, capsys.readouterr().err)
    with pytest.raises(cellblock.InvalidInputError, match=advice):
        cellblock.get_or_create("at-home")
    with own_gateway() as gateway, gateway.client(token("run", "read")) as api:
        answer = api.post("/kernels", json={"name": "at-home"})
    assert answer.status_code == 422
    assert re.search(advice, answer.json()["detail"])


@pytest.mark.slow
def test_options_are_those_of_every_front(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = run(capsys, "create", "odd", "-o", "idle_timeout=600", "--no-sandbox", "--workspace", str(tmp_path))[1]
    assert (made["isolate"], made["workspace"]) == ("none", str(tmp_path))
    assert main(["create", "other", "-o", "idle_timeot=600"]) == 2
    assert "there is no option 'idle_timeot'; did you mean 'idle_timeout'?" in capsys.readouterr().err
    assert main(["create", "other", "-o", "idle_timeout"]) == 2
    assert "--option takes KEY=VALUE" in capsys.readouterr().err
    assert main(["create", "odd"]) == 1
    assert capsys.readouterr().err == "cellblock: session 'odd' exists already: use it, choose another name, or end it first\n"


def test_a_name_that_is_unknown_is_answered_by_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    cellblock.wipe()
    assert main(["status", "--name", "nope"]) == 1
    assert capsys.readouterr().err.endswith(
        "there is no session 'nope'; there are no sessions yet: 'cellblock create NAME' makes one\n"
    )
    cellblock.get_or_create("analysis")
    assert main(["restart", "anlysis"]) == 1
    assert capsys.readouterr().err == "cellblock: there is no session 'anlysis'; did you mean 'analysis'?\n"
    assert main(["destroy", "anlysis"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"destroyed": False}
    assert err == "cellblock: there is no session 'anlysis'; did you mean 'analysis'?\n"
    with pytest.raises(cellblock.NotFoundError, match="there is no session 'anlysis'; did you mean 'analysis'"):
        cellblock.execute("anlysis", "1")
    assert main(["logs", "zzz"]) == 1
    assert capsys.readouterr().err == "cellblock: there is no session 'zzz'; the sessions are analysis\n"


def test_the_log_has_code_and_output_and_the_result_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    cellblock.get_or_create("logged")
    cellblock.execute("logged", "print('said')\n6 * 7")
    cellblock.execute("logged", "1 / 0")
    assert main(["logs", "logged"]) == 0
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if not line.startswith("──")][:5] == [
        "> print('said')",
        "> 6 * 7",
        "said",
        "42",
        "> 1 / 0",
    ]
    assert ("ZeroDivisionError" in out, err) == (True, "")  # a file that the log is written to is complete
    (first, second) = run(capsys, "logs", "logged", "--json")[1]
    assert (first["code"], first["result"]["output"], second["result"]["status"]) == (
        "print('said')\n6 * 7",
        "said\n42"[:5],
        "error",
    )
    assert main(["logs", "--execution", first["id"]]) == 0
    assert "> 6 * 7" in capsys.readouterr().out


@pytest.mark.slow
def test_following_a_log_shows_what_runs_from_now_on() -> None:
    cellblock.get_or_create("followed")
    with terminal(*command("logs", "followed", "-f")) as screen:
        cellblock.execute("followed", "print('from' ' elsewhere')")
        screen.wait_for("from elsewhere")
        screen.type("\x03")
        assert screen.end() == 130
    assert cellblock.execute("followed", "1").ok


@pytest.mark.slow
def test_people_get_tables_as_wide_as_their_terminal() -> None:
    cellblock.wipe()
    with terminal(*command("list")) as screen:
        screen.wait_for("There are no sessions.")
        assert screen.end() == 0
    cellblock.get_or_create("wide")
    with terminal(*command("list"), columns=60) as screen:
        assert screen.end() == 0
    lines = screen.text.splitlines()
    assert "name" in lines[0]
    assert max(map(len, lines)) <= 60
    with terminal(*command("list", "--json")) as screen:
        screen.wait_for('"kernels"')
        assert screen.end() == 0


@pytest.mark.slow
def test_wiping_asks_in_a_terminal() -> None:
    cellblock.get_or_create("precious")
    with terminal(*command("wipe")) as screen:
        screen.wait_for("[y/N]")
        screen.enter("n")
        assert screen.end() == 1
    assert cellblock.status("precious").status == "idle"
    with terminal(*command("wipe", "--yes")) as screen:
        assert screen.end() == 0
    assert cellblock.list_kernels() == []


@pytest.mark.slow
def test_what_is_no_package_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    cellblock.get_or_create("packages")
    assert main(["install", "packages", "-r/etc/passwd"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("cellblock: ")
    with terminal(*command("install", "packages", "./missing.whl")) as screen:
        assert screen.end() == 1
    assert "ERROR: " in screen.text  # what pip said


@pytest.mark.slow
def test_the_daemon_is_started_asked_and_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "another"))
    assert run(capsys, "daemon", "status") == (1, {"running": False})
    assert main(["daemon", "logs"]) == 1
    capsys.readouterr()
    assert run(capsys, "daemon", "start")[0] == 0
    status, found = run(capsys, "daemon", "status")
    assert (status, found["running"], found["sessions"], found["version"]) == (0, True, 0, cellblock.__version__)
    assert main(["daemon", "logs"]) == 0
    assert "the daemon listens" in capsys.readouterr().out
    assert run(capsys, "daemon", "stop") == (0, {"stopped": True})
    assert run(capsys, "daemon", "stop") == (0, {"stopped": False})


def test_a_unit_for_systemd_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["daemon", "install"]) == 0
    assert "systemctl --user daemon-reload" in capsys.readouterr().out
    assert "ExecStart=" in (tmp_path / "systemd" / "user" / "cellblock.service").read_text()


@pytest.mark.slow
def test_a_terminal_that_lacks_a_character_gets_it_escaped() -> None:
    cellblock.get_or_create("ü")
    done = subprocess.run(
        ["env", "PYTHONIOENCODING=ascii", "PYTHONUTF8=0", *command("destroy", "ü2")], capture_output=True, check=False
    )
    assert done.returncode == 1
    shown = subprocess.run(
        ["env", "PYTHONIOENCODING=ascii", *command("logs", "none-ü")], capture_output=True, text=True, check=False
    )
    assert "\\xfc" in shown.stderr
