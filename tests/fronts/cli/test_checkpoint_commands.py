"""`cellblock checkpoint`, `restore`, `undo`, `diff`, `fork` and `adopt`, and the same functions for Python."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.fronts.cli import main
from git_repositories import Repository
from terminals import cellblock as command
from terminals import terminal

pytestmark = pytest.mark.usefixtures("daemon")


@pytest.fixture
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cellblock.get_or_create("s", working_dir=str(tmp_path_factory.mktemp("workspace")))
    cellblock.execute("s", "x = 1")
    yield "s"
    cellblock.wipe()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return what a command says, as data."""
    assert main([*arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_commits_of_a_clone_are_shown_fetched_and_applied(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project = Repository(tmp_path / "project")
    project.commit(a="one")
    assert main(["exec", "--clone", "--workspace", str(project.path), "s", "!echo two > a && git commit -qam two"]) == 0
    capfd.readouterr()
    assert main(["diff", "s"]) == 0
    assert "+two\n" in capfd.readouterr().out
    assert main(["fetch", "s"]) == 0
    assert json.loads(capfd.readouterr().out)["commits"] == cellblock.clone_fetch("s").commits == 1
    assert main(["apply", "s"]) == 0
    assert json.loads(capfd.readouterr().out) == {"files": ["a"], "conflicts": []}
    assert cellblock.clone_diff("s").files == ("a",)
    with pytest.raises(cellblock.CellblockError, match="do not fit the working copy"):
        cellblock.clone_apply("s")
    assert main(["diff", "s", "--file", "a"]) == 2
    assert "name the checkpoint to compare with" in capfd.readouterr().err
    cellblock.wipe()


@pytest.mark.slow
def test_a_session_goes_back_by_name(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = said(capsys, "checkpoint", session, "before", "--files")
    assert (made["name"], made["execution_count"], made["automatic"]) == ("before", 1, False)
    cellblock.execute(session, "x = 2; open('new', 'w').close()")
    gone_back = said(capsys, "restore", session, "before")
    assert gone_back["changes"].pop("trash")
    assert gone_back == {**made, "changes": {"written": [], "removed": ["new"], "kept": [], "more": 0}}
    cellblock.execute(session, "open('new', 'w').close()")
    assert cellblock.restore(session, "before").removed == ("new",)
    assert cellblock.execute(session, "x").return_value == "1"
    assert made in said(capsys, "checkpoints", session)["checkpoints"]
    assert main(["restore", session, "after"]) == 1
    assert f"there is no checkpoint 'after'; session '{session}' has:" in capsys.readouterr().err
    assert said(capsys, "checkpoint", session, "before", "--drop") == {"dropped": "before"}
    assert main(["checkpoint", session, "--drop"]) == 2
    assert "name the checkpoint to drop" in capsys.readouterr().err
    with pytest.raises(cellblock.CheckpointError):
        cellblock.restore(session, "before")


@pytest.mark.slow
def test_a_terminal_is_told_what_was_undone(session: str) -> None:
    cellblock.checkpoint(session, "one")
    cellblock.execute(session, "x = 2")
    cellblock.execute(session, "x = 3")
    with terminal(*command("undo", session, "2")) as screen:
        assert screen.end() == 0
        assert "undone: [2] x = 2" in screen.text
        assert "undone: [3] x = 3" in screen.text
    with terminal(*command("checkpoints", session), columns=200) as screen:
        assert screen.end() == 0
        assert "one" in screen.text
    assert cellblock.execute(session, "x").return_value == "1"
    with pytest.raises(cellblock.CheckpointError, match="to undo, not 100"):
        cellblock.undo(session, 100)


@pytest.mark.slow
def test_what_has_changed_since_a_checkpoint(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    cellblock.execute(session, "rows = [1]; gone = 0")
    made = cellblock.checkpoint(session, "before", files="copy")
    with terminal(*command("diff", session, "before")) as screen:
        assert screen.end() == 0
        assert "Nothing has changed." in screen.text
    cellblock.execute(session, "rows.append(2); del gone; new = 3; open('data', 'w').write('1'); None")
    changes = cellblock.diff(session, made)
    assert [(one.before.preview, one.after.preview) for one in changes.variables.changed] == [("[1]", "[1, 2]")]
    assert ([one.name for one in changes.variables.new], [one.name for one in changes.variables.deleted]) == (
        ["new"],
        ["gone"],
    )
    assert changes.files is not None
    assert [one.path for one in changes.files.new] == ["data"]
    assert said(capsys, "diff", session, "before") == changes.to_dict()
    with terminal(*command("diff", session, "before")) as screen:
        assert screen.end() == 0
        for line in (
            r"new\s+new\s+3",
            r"changed\s+rows\s+\[1\]\s+\[1, 2\]",
            r"deleted\s+gone\s+0",
            r"new file\s+data\s+1 bytes",
        ):
            assert re.search(line, screen.text)
    with terminal(*command("diff", session, "before", "--file", "data")) as screen:
        assert screen.end() == 0
        assert "+++ b/data" in screen.text
        assert "+1" in screen.text
    piped = subprocess.run(command("diff", session, "before", "--file", "data"), capture_output=True, check=True)
    assert piped.stdout == b"--- /dev/null\n+++ b/data\n@@ -0,0 +1 @@\n+1\n\\ No newline at end of file\n"
    versions = cellblock.file_versions(session, "data", made)
    assert said(capsys, "diff", session, "before", "--file", "data", "--json") == versions.to_dict()
    assert main(["diff", session, "before", "--file", "missing"]) != 0
    assert "there is no file 'missing' in either state" in capsys.readouterr().err
    assert main(["diff", session, "after"]) != 0
    assert "there is no checkpoint 'after'" in capsys.readouterr().err


def test_branches_have_names_and_lives_of_their_own(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "fork", session, "2")
    assert main(["destroy", f"{session}-1", f"{session}-2"]) == 0
    capsys.readouterr()
    assert main(["fork", session, "0"]) == 2
    assert "a session has 1 to 100 branches at once, not 0" in capsys.readouterr().err
    made = said(capsys, "fork", session, "left", "right")["kernels"]
    assert [kernel["name"] for kernel in made] == ["left", "right"]
    assert cellblock.execute("left", "x += 1; x").return_value == "2"
    assert cellblock.destroy("left")
    assert cellblock.execute("right", "x += 2; x").return_value == "3"
    assert cellblock.execute(session, "x").return_value == "1"
    for names in (["right"], ["a", "a"], [], ["../a"]):
        with pytest.raises(cellblock.CellblockError):
            cellblock.fork(session, names)
    for no_names in ("ab", 2):  # a string is not one session for each letter
        with pytest.raises(cellblock.InvalidInputError, match="branches need a list of names"):
            cellblock.fork(session, no_names)  # type: ignore[arg-type]
    assert sorted(kernel.name for kernel in cellblock.list_kernels()) == ["right", "s"]


@pytest.mark.slow
def test_a_branch_is_adopted_with_its_files(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fork", session, "a", "b", "--files", "copy", "--seed", "1", "--seed", "1"]) == 0
    drawn = [cellblock.execute(name, "import random; random.random()").text for name in ("a", "b")]
    assert drawn[0] == drawn[1]
    cellblock.execute("a", "open('new', 'w').write('1'); x = 9")
    capsys.readouterr()
    none = {"written": [], "removed": [], "kept": [], "more": 0, "trash": ""}
    assert said(capsys, "adopt", session, "a") == {**none, "written": ["new"]}
    assert cellblock.execute(session, "x, open('new').read()").return_value == "(9, '1')"
    adopted = said(capsys, "adopt", session, "b")
    assert adopted.pop("trash")
    assert {**adopted, "trash": ""} == {**none, "removed": ["new"]}
    assert main(["adopt", session, "b"]) != 0
