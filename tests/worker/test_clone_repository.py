"""The program that makes clones and packs changes, outside a sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cellblock.worker import clone_repository
from git_repositories import Repository


def work(clone: Path, out: Path, **request: Any) -> dict[str, Any]:
    """Run the program in a directory, and return its answer."""
    out.mkdir()
    (out / "request.json").write_text(json.dumps({"clone": str(clone), "has_base": True, **request}))
    subprocess.run([sys.executable, "-I", clone_repository.__file__, str(out)], cwd=clone, check=True)
    answer: dict[str, Any] = json.loads((out / "answer.json").read_text())
    return answer


def test_a_clone_shares_objects_and_changes_are_packed(tmp_path: Path) -> None:
    project = Repository(tmp_path / "project")
    base = project.commit(a="one")
    (clone := tmp_path / "clone").mkdir()
    asked = {"origin": str(project.path / ".git"), "base": base, "branch": "cellblock/x", "settings": {"user.name": "Ada"}}
    assert work(clone, tmp_path / "1", do="create", **asked) == {}
    assert (clone / ".git/objects/info/alternates").read_text().strip() == f"{project.path}/.git/objects"
    assert (clone / "a").read_text() == "one"
    (clone / "a").write_text("two")
    assert work(clone, tmp_path / "2", do="pack", base=base, uncommitted=False) == {"commit": base}
    before = sorted((clone / ".git").rglob("*"))
    answer = work(clone, tmp_path / "3", do="pack", base=base, uncommitted=True)
    assert answer["commit"] != base
    assert (tmp_path / "3/changes.pack").read_bytes()[:4] == b"PACK"
    assert sorted((clone / ".git").rglob("*")) == before


@pytest.mark.slow
def test_the_pack_has_the_whole_history_if_the_project_lacks_the_first_commit(tmp_path: Path) -> None:
    clone = Repository(tmp_path / "clone")
    base = clone.commit(a="one")
    clone.commit(a="two")
    for name, has_base in (("part", True), ("whole", False)):
        work(clone.path, tmp_path / name, do="pack", base=base, uncommitted=False, has_base=has_base)
    new = Repository(tmp_path / "new")
    with (tmp_path / "whole/changes.pack").open("rb") as pack:
        subprocess.run(["git", "index-pack", "--strict", "--stdin"], cwd=new.path, stdin=pack, check=True, capture_output=True)
    assert new.git("cat-file", "-t", base) == "commit"
    assert (tmp_path / "part/changes.pack").stat().st_size < (tmp_path / "whole/changes.pack").stat().st_size


def test_errors_of_git_are_answers(tmp_path: Path) -> None:
    (clone := tmp_path / "clone").mkdir()
    assert "not a git repository" in work(clone, tmp_path / "1", do="pack", base="0" * 40, uncommitted=False)["error"]
    asked = {"origin": "/nowhere", "base": "0" * 40, "branch": "x", "settings": {}}
    assert "does not exist" in work(clone, tmp_path / "2", do="create", **asked)["error"]
