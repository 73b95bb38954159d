"""`cellblock save`, `load`, `export` and `variables`, and the same functions for Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cellblock
from cellblock.fronts.cli import main
from terminals import cellblock as command
from terminals import terminal


@pytest.fixture(scope="module", autouse=True)
def session(daemon: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cellblock.get_or_create("s", working_dir=str(tmp_path_factory.mktemp("workspace")))
    cellblock.execute("s", "x = [1, 2]\nlock = (i for i in x)\nprint('hello')")


def test_a_session_is_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["save", "s", "s.cellblock"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["path"], report["saved"], report["cells"]) == (str(tmp_path / "s.cellblock"), ["x"], 1)
    assert report["left_out"][0]["name"] == "lock"
    assert main(["load", "s.cellblock", "again"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["loaded"], report["kernel"]["name"]) == (["x"], "again")
    result = cellblock.execute("again", "sum(x)")
    assert (result.return_value, result.execution_count) == ("3", 2)
    assert main(["load", "s.cellblock", "again"]) != 0
    assert "session 'again' exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_terminal_is_told_what_was_left_out(tmp_path: Path) -> None:
    with terminal(*command("save", "s", str(tmp_path / "s")), columns=300) as screen:
        assert screen.end() == 0
        assert "1 variable, 1 cell" in screen.text
        assert "lock was not saved: TypeError: cannot pickle 'generator' object" in screen.text
    with terminal(*command("variables", "s")) as screen:
        assert screen.end() == 0
        assert "[1, 2]" in screen.text


def test_a_file_that_cannot_be_loaded_leaves_no_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_text("bad")
    assert main(["load", str(tmp_path / "bad"), "never"]) == 2
    assert "not a saved session" in capsys.readouterr().err
    assert "never" not in [kernel.name for kernel in cellblock.list_kernels()]


def test_a_session_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "s", str(tmp_path / "s.ipynb")]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(tmp_path / "s.ipynb")}
    assert "hello" in (tmp_path / "s.ipynb").read_text()
    assert main(["export", "s", str(tmp_path / "s.pdf")]) == 2
    assert ".ipynb" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["save", "export"])
def test_a_file_is_only_replaced_by_force(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.py"
    file.write_text("mine")
    assert main([command, "s", str(file)]) == 2
    assert capsys.readouterr().err == f"cellblock: {file} exists already; --force replaces it\n"
    assert file.read_text() == "mine"
    assert main([command, "s", str(file), "--force"]) == 0
    assert file.read_bytes() != b"mine"


@pytest.mark.slow
def test_python_has_the_same_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = cellblock.save("s", "s", workspace=True)
    assert (report.path, report.files) == (tmp_path / "s", True)
    other = cellblock.get_or_create("other")
    assert cellblock.load(other, "s", timeout=30).loaded == ["x"]
    assert [one.preview for one in cellblock.variables(other)] == ["[1, 2]"]
    assert cellblock.export("s", "s.py") == tmp_path / "s.py"
    with pytest.raises(cellblock.NotFoundError):
        cellblock.save("missing", "s")
    with pytest.raises(cellblock.StoreError, match="No such file"):
        cellblock.load(other, "missing")


@pytest.mark.slow
def test_a_url_stands_for_a_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/s"
    assert main(["save", "s", url]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "s")
    assert main(["save", "s", url]) == 2
    assert "exists already; --force replaces it" in capsys.readouterr().err
    assert main(["load", url, "from-url"]) == 0
    assert json.loads(capsys.readouterr().out)["loaded"] == ["x"]
    assert main(["save", "s", "memory://s"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == "memory://s"
    assert main(["load", "memory://s", "from-memory"]) == 0  # the daemon's
    assert json.loads(capsys.readouterr().out)["loaded"] == ["x"]
    assert main(["save", "s", "memory://"]) == 2
    assert "not the URL of a file" in capsys.readouterr().err
    assert main(["export", "s", "memory://s.py"]) == 2
