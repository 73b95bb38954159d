"""`cellblock kernelspec`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cellblock.fronts.cli import main


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("JUPYTER_PATH", raising=False)
    return tmp_path / "data"


def test_a_kernelspec_is_installed_listed_and_removed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernelspec", "install", "--name", "open", "--no-sandbox", "--display-name", "Mine"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["directory"] == str(data / "kernels" / "open")
    assert made["options"] == {"sandbox": False}
    assert main(["kernelspec", "list"]) == 0
    assert made in json.loads(capsys.readouterr().out)["kernelspecs"]
    assert main(["kernelspec", "remove", "open"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": "open", "directory": made["directory"]}
    assert main(["kernelspec", "remove", "open"]) == 1
    assert "no kernelspec 'open'" in capsys.readouterr().err


def test_a_prefix_and_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prefix", str(tmp_path / "p"), "--sandbox-config", "s.json", "--allow-host", "a.example"]
    assert main(["kernelspec", "install", *arguments]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["directory"] == str(tmp_path / "p" / "share" / "jupyter" / "kernels" / "cellblock")
    assert made["options"] == {"hosts": ["a.example"], "sandbox_config": str(Path("s.json").absolute())}


def test_places_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernelspec", "install", "--user", "--sys-prefix"]) == 2
    assert "give only one of" in capsys.readouterr().err
