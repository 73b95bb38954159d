"""Kernelspecs that start sandboxed kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cellblock.errors import InvalidInputError, NotFoundError
from cellblock.jupyter import kernelspecs


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "prefix" / "share" / "jupyter"))
    return tmp_path / "data"


def test_one_is_installed_listed_and_removed(data: Path) -> None:
    made = kernelspecs.install({"sandbox": False}, name="plain")
    assert made.directory == data / "kernels" / "plain"
    spec = json.loads((made.directory / "kernel.json").read_text())
    assert spec["argv"][:4] == [sys.executable, "-m", "cellblock.jupyter", "-f"]
    assert spec["interrupt_mode"] == "message"
    assert "no sandbox" in spec["display_name"]
    assert made in kernelspecs.installed()
    assert kernelspecs.install({}, name="plain").to_dict()["options"] == {}  # in its place
    assert kernelspecs.remove("plain").name == "plain"
    assert made.name not in [spec.name for spec in kernelspecs.installed()]
    with pytest.raises(NotFoundError, match="no kernelspec 'plain'"):
        kernelspecs.remove("plain")


def test_a_prefix(tmp_path: Path) -> None:
    made = kernelspecs.install({}, prefix=tmp_path / "prefix")
    assert made.directory == tmp_path / "prefix" / "share" / "jupyter" / "kernels" / "cellblock"
    assert made in kernelspecs.installed()


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "x" * 200])
def test_a_name_that_cannot_be_one(name: str) -> None:
    with pytest.raises(InvalidInputError, match="name"):
        kernelspecs.install({}, name=name)


def test_a_kernelspec_of_another_program_stays(data: Path) -> None:
    other = data / "kernels" / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text('{"argv": ["python", "-m", "ipykernel"]}')
    with pytest.raises(InvalidInputError, match="another program"):
        kernelspecs.install({}, name="python3")
    with pytest.raises(NotFoundError):
        kernelspecs.remove("python3")
