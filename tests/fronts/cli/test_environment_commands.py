"""`cellblock env`."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock.fronts.cli import main
from cellblock.host.environments import build
from cellblock.host.environments.store import Store
from package_index import Index, package_index


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(build, "_find_uv", lambda: None)
    with package_index() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_environments_are_made_listed_shown_removed_and_brought_back(
    upstream: Index, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    needs = tmp_path / "needs.txt"
    needs.write_text("tiny-demo>=1\n")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = []\n[dependency-groups]\ndev = ["tiny-demo==1"]\n')

    def said(*arguments: str) -> str:
        assert main(["env", *arguments]) == 0
        return capsys.readouterr().out

    made = json.loads(said("create", "data", "-r", str(needs)))
    assert (made["packages"], made["asked"], made["base"]) == (["tiny-demo==1.0"], ["tiny-demo>=1"], "empty")
    assert json.loads(said("list")) == {"environments": [made]}
    assert json.loads(said("show", "data")) == made
    assert made["trusted"] is False
    assert json.loads(said("trust", "data")) == json.loads(said("show", "data")) == {**made, "trusted": True}
    assert json.loads(said("distrust", "data")) == json.loads(said("show", "data")) == made
    assert json.loads(said("verify")) == json.loads(said("verify", "data")) == {"damaged": []}
    damaged = f"{Store().environment(made['key'])}/site-packages/tiny_demo.py"
    os.rename(damaged, f"{tmp_path}/aside")
    assert main(["env", "verify", "data"]) == 1
    assert json.loads(capsys.readouterr().out) == {"damaged": [damaged]}
    os.rename(f"{tmp_path}/aside", damaged)
    assert tomllib.loads(said("show", "data", "--lock"))["packages"][0]["name"] == "tiny-demo"
    assert main(["env", "create", "data", "other"]) == 1
    assert "environment 'data' exists with other packages" in capsys.readouterr().err
    path = json.loads(said("remove", "data"))["lock"]
    assert json.loads(said("list")) == {"environments": []}
    assert json.loads(said("create", "data", "--lock", path))["key"] == made["key"]
    said("remove", "data")
    assert json.loads(said("prune")) == {"pruned": [made["key"]]}
    assert json.loads(said("create", "data", "--project", str(tmp_path), "--groups", "dev"))["asked"] == ["tiny-demo==1"]


def check_refused(cases: list[tuple[list[str], str]], capsys: pytest.CaptureFixture[str]) -> None:
    """Check that each command ends with an error that has a text."""
    for arguments, error in cases:
        assert main(["env", *arguments]) != 0
        assert error in capsys.readouterr().err


def test_mistakes_say_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    missing = [
        ([verb, "data"], "there is no environment 'data'") for verb in ("show", "remove", "trust", "distrust", "verify")
    ]
    check_refused([*missing, (["create", "data"], "name packages, or a file with -r, --project, --script or --lock")], capsys)


@pytest.mark.slow
def test_mistakes_of_what_is_to_be_installed_say_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    project = str(Path(__file__).parents[3])
    cases = [
        (["create", "data", "-r", "missing.txt"], "missing.txt cannot be read"),
        (["create", "data", "--groups", "dev"], "groups of a project: pass project='DIRECTORY' (--project), too"),
        (["create", "data", "--project", project, "--group", "x"], "has no dependency group 'x': it has"),
        (["create", "data", "x", "--lock", "l"], "the lock of an environment is complete"),
        (["create", "a/b", "x"], "the name of an environment has up to 64"),
    ]
    check_refused(cases, capsys)


def test_damage_says_how_to_rebuild(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    monkeypatch.setattr("cellblock.fronts.cli.output.wants_json", lambda _: False)
    assert main(["env", "verify"]) == 0
    assert capsys.readouterr().out == "all files are intact\n"
    place = tmp_path / "environments" / "environments" / "key"
    place.mkdir(parents=True)
    assert main(["env", "verify"]) == 1
    assert capsys.readouterr().out == (
        f"{place}/wheels\n"
        "1 files are damaged. To rebuild environments, end their sessions, then:\n"
        "  cellblock env show NAME --lock > NAME.toml\n"
        "  cellblock env remove NAME\n"
        "  cellblock env prune\n"
        "  cellblock env create NAME --lock NAME.toml\n"
    )
