"""`cellblock files`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import cellblock
from cellblock.fronts.cli import main
from terminals import cellblock as command
from terminals import terminal


@pytest.fixture(scope="module")
def workspace(daemon: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    cellblock.get_or_create("f", working_dir=str(directory))
    return directory


def test_files_go_in_and_out(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytes(range(256))
    source = tmp_path / "a.bin"
    source.write_bytes(data)
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "b.txt").write_text("b")
    assert main(["files", "put", "f", str(source), str(folder), "--recursive", "--to", "in"]) == 0
    assert (workspace / "in" / "a.bin").read_bytes() == data
    assert (workspace / "in" / "folder" / "deep" / "b.txt").read_text() == "b"
    put = json.loads(capsys.readouterr().out)["files"]
    assert put[0] == {"file": str(source), "path": "in/a.bin", "size": 256}
    assert main(["files", "ls", "f", "in", "-r"]) == 0
    listed = {each["path"]: each["kind"] for each in json.loads(capsys.readouterr().out)["files"]}
    assert listed["in/a.bin"] == "file"
    assert listed["in/folder/deep/b.txt"] == "file"
    assert main(["files", "get", "f", "in/a.bin", "--to", str(tmp_path / "out.bin")]) == 0
    assert (tmp_path / "out.bin").read_bytes() == data
    got = json.loads(capsys.readouterr().out)["files"]
    assert got == [{"path": "in/a.bin", "file": str(tmp_path / "out.bin"), "size": 256}]
    assert main(["files", "get", "f", "in/folder/deep/b.txt", "--to", "-", "--json"]) == 0
    assert capsys.readouterr().out == "b"  # the file itself
    assert main(["files", "rm", "f", "in", "--recursive"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": ["in"]}
    assert not (workspace / "in").exists()


def test_nothing_is_replaced_unless_asked(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace / "x").write_text("new")
    (tmp_path / "x").write_text("old")
    assert main(["files", "get", "f", "x", "--to", str(tmp_path)]) == 2
    assert "exists already; --force replaces it" in capsys.readouterr().err
    assert main(["files", "get", "f", "x", "--to", str(tmp_path), "--force"]) == 0
    assert (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["get", "f", "missing"], 4, "missing"),
        (["get", "f", "../../etc/passwd", "--to", "-"], 4, "passwd"),
        (["get", "f", "a", "b", "--to", "nowhere"], 2, "to copy several files, --to must name an existing folder"),
        (["put", "f", "missing.txt"], 2, "missing.txt cannot be read: No such file or directory"),
        (["put", "f", "/etc"], 2, "/etc is a folder; --recursive copies it"),
        (["ls", "nobody"], 1, "there is no session 'nobody'; the sessions are f"),
    ],
)
def test_what_cannot_be_done_is_said(
    workspace: Path, arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["files", *arguments]) in (status, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_names_and_contents_do_not_steer_the_terminal(workspace: Path) -> None:
    (workspace / "n\x1b]0;x\x07").write_text("\x1b[2J")
    os.utime(workspace / "n\x1b]0;x\x07", (1e15, 1e15))
    with terminal(*command("files", "ls", "f")) as screen:
        screen.wait_for("n\\x1b]0;x\\x07")
        assert screen.end() == 0
    assert "\x1b]" not in screen.raw
    with terminal(*command("files", "get", "f", "n\x1b]0;x\x07", "--to", "-")) as screen:
        screen.wait_for("\\x1b[2J")
        assert screen.end() == 0
    assert "\x1b[2J" not in screen.raw
