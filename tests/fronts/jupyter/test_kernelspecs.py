"""Kernelspecs that start sandboxed kernels."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from cellblock.errors import InvalidInputError, NotFoundError
from cellblock.fronts.gateway import kernelspecs as gateway_kernelspecs
from cellblock.fronts.jupyter import kernelspecs


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


@pytest.mark.parametrize("link", ["cellblock", "cellblock/kernel.json"])
@pytest.mark.parametrize("dangling", [True, False])
def test_nothing_is_written_where_a_link_leads(data: Path, tmp_path: Path, link: str, dangling: bool) -> None:
    """The place can be one that others write to, a session among them."""
    target = tmp_path / "target"
    made = kernelspecs.install({}, name="cellblock")
    content = (made.directory / "kernel.json").read_bytes()
    if link == "cellblock":
        made.directory.rename(target)
    else:
        (made.directory / "kernel.json").rename(target)
    if dangling:
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    (data / "kernels" / link).symlink_to(target)
    refused = link == "cellblock" or dangling
    with pytest.raises(InvalidInputError, match=r"is a symbolic link|of another program") if refused else nullcontext():
        kernelspecs.install({"sandbox": False}, name="cellblock")
    assert target.exists() is not dangling
    if not dangling:
        found = target / "kernel.json" if target.is_dir() else target
        assert found.read_bytes() == content


def test_a_link_to_a_kernelspec_is_removed_and_nothing_else(data: Path, tmp_path: Path) -> None:
    kernelspecs.install({}).directory.rename(tmp_path / "moved")
    (data / "kernels" / "cellblock").symlink_to(tmp_path / "moved")
    kernelspecs.remove()
    assert not (data / "kernels" / "cellblock").is_symlink()
    assert (tmp_path / "moved" / "kernel.json").exists()


def test_what_others_have_put_among_kernelspecs_hinders_nobody(data: Path) -> None:
    (data / "kernels").mkdir(parents=True)
    for name, content in {
        "deep": "[" * 100_000,
        "list": "[]",
        "argv": '{"argv": 5}',
        "text": '{"argv": "cellblock.jupyter"}',
    }.items():
        (data / "kernels" / name).mkdir()
        (data / "kernels" / name / "kernel.json").write_text(content)
    (data / "kernels" / "fifo").mkdir()
    os.mkfifo(data / "kernels" / "fifo" / "kernel.json")
    (data / "kernels" / "endless").mkdir()
    (data / "kernels" / "endless" / "kernel.json").symlink_to("/dev/zero")
    (data / "kernels" / "file").touch()
    made = kernelspecs.install({})
    assert [spec.name for spec in kernelspecs.installed() if spec.directory.is_relative_to(data)] == [made.name]
    assert [*gateway_kernelspecs.installed([data / "kernels"])] == ["python3"]


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match=r"cannot be written: Not a directory; --prefix names another place"):
        kernelspecs.install({}, prefix=tmp_path / "file")
