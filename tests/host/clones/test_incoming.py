"""Commits that a hostile session has made: what the host refuses, and what it writes."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from pathlib import Path

import pytest

from cellblock import InvalidInputError
from cellblock.errors import AccessError
from cellblock.host.clones import git, incoming
from cellblock.host.clones.incoming import Incoming, _leads_out
from cellblock.host.clones.project import Project
from git_repositories import Repository


@pytest.fixture
def hostile(repository: Repository, tmp_path: Path) -> Repository:
    """A repository of a session, which begins with the commit of the user's."""
    return Repository.at(shutil.copytree(repository.path, tmp_path / "hostile", symlinks=True))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The directory that a sandbox writes."""
    (made := tmp_path / "out").mkdir()
    return made


def receive(repository: Repository, out: Path, commit: object) -> Incoming:
    (work := out.parent / "work").mkdir()
    path = str(repository.path)
    return Incoming.receive(str(out), str(work), Project(path, f"{path}/.git"), repository.git("rev-parse", "HEAD"), commit)


def packed(repository: Repository, hostile: Repository, out: Path, commit: str) -> Incoming:
    hostile.pack(out, commit, thin=repository.git("rev-parse", "HEAD"))
    return receive(repository, out, commit)


def test_commits_arrive(repository: Repository, hostile: Repository, out: Path) -> None:
    commit = hostile.commit(**{"a.txt": "one\ntwo\n", "b.txt": "new"})
    found = packed(repository, hostile, out, commit)
    assert found.files == ("a.txt", "b.txt")
    assert b"+two\n" in found.patch
    project = Project(str(repository.path), f"{repository.path}/.git")
    assert found.fetch(project, "refs/remotes/cellblock/x") == 1
    assert repository.git("rev-parse", "cellblock/x") == commit
    assert repository.git("status", "--porcelain") == ""


@pytest.mark.parametrize("name", [".git", ".GIT", "git~1", ".g\u200cit", "..", "."])
def test_trees_with_names_that_lead_to_a_repository_are_refused(
    repository: Repository, hostile: Repository, out: Path, name: str
) -> None:
    inner = hostile.tree(("100644", "config", hostile.blob("[core]\n\tfsmonitor = evil\n")))
    commit = hostile.commit_tree(hostile.tree(("40000", name, inner)))
    with pytest.raises(InvalidInputError, match="git refuses the commits of the clone"):
        packed(repository, hostile, out, commit)


def test_a_pack_without_an_object_is_refused(repository: Repository, hostile: Repository, out: Path) -> None:
    tree = hostile.tree(("100644", "x", hostile.blob("missing")))
    commit = hostile.commit_tree(tree)
    hostile.pack(out, commit, tree)
    with pytest.raises(InvalidInputError, match="git refuses the commits of the clone"):
        receive(repository, out, commit)


def test_a_commit_is_a_hash(repository: Repository, out: Path) -> None:
    for commit in ("HEAD", "--exec=x", "", None, "refs/heads/main", "A" * 40, "0" * 41):
        with pytest.raises(InvalidInputError, match="no valid commit"):
            receive(repository, out, commit)
        (out.parent / "work").rmdir()


def test_a_commit_must_be_one(repository: Repository, hostile: Repository, out: Path) -> None:
    blob = hostile.blob("x")
    hostile.pack(out, blob)
    with pytest.raises(InvalidInputError, match="git refuses the commits of the clone"):
        receive(repository, out, blob)


@pytest.mark.parametrize("kind", ["link", "pipe", "missing"])
def test_a_pack_is_a_plain_file(repository: Repository, out: Path, kind: str) -> None:
    if kind == "link":
        os.symlink("/etc/passwd", out / "changes.pack")
    elif kind == "pipe":
        os.mkfifo(out / "changes.pack")
    with pytest.raises(InvalidInputError, match=r"packed no commits|not a regular file"):
        receive(repository, out, repository.git("rev-parse", "HEAD"))


def test_changes_have_a_limit(repository: Repository, hostile: Repository, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = packed(repository, hostile, out, hostile.commit(x="x" * 5000))
    monkeypatch.setattr(git, "MOST", 1000)
    with pytest.raises(InvalidInputError, match=r"cannot be shown: the output of git diff-tree exceeds .* fetch them"):
        found.patch  # noqa: B018  # a property


def test_a_pack_has_a_limit(repository: Repository, hostile: Repository, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MOST_PACKED", 100)
    commit = hostile.commit(x=os.urandom(200).hex())
    with pytest.raises(InvalidInputError, match="maximum allowed size"):
        packed(repository, hostile, out, commit)


def test_an_object_that_claims_to_be_large_takes_no_memory(repository: Repository, out: Path) -> None:
    size, header = 2**36, bytearray([0x80 | 1 << 4 | 0])  # a commit of 64 GiB
    left = size >> 4
    while left:
        header.append(left & 0x7F | (0x80 if left >> 7 else 0))
        left >>= 7
    (out / "changes.pack").write_bytes(struct.pack(">4sII", b"PACK", 2, 1) + header + zlib.compress(b"x") + bytes(20))
    with pytest.raises(InvalidInputError, match=r"git refuses the commits of the clone: .*([Oo]ut of memory|malloc)"):
        receive(repository, out, repository.git("rev-parse", "HEAD"))


def test_names_that_programs_obey_are_refused(repository: Repository, hostile: Repository, out: Path) -> None:
    obeyed = (".envrc", "Sub/.ENVRC", "sub/.vscode/tasks.json", ".gitattributes", "sub/.gitmodules", ".env", ".husky/x")
    for path in (*obeyed, "tools/hooks/x"):
        (hostile.path / path).parent.mkdir(parents=True, exist_ok=True)
        (hostile.path / path).write_text("[submodule]\n" if "modules" in path else "x\n")
        commit = hostile.commit()
        found = packed(repository, hostile, out, commit)
        with pytest.raises(AccessError, match=f"nothing was applied: .*'{path}'.*allow_protected=True"):
            found.check_harmless("tools/hooks")
        (hostile.path / path).unlink()
        shutil.rmtree(out.parent / "work")


def test_other_names_are_not(repository: Repository, hostile: Repository, out: Path) -> None:
    os.symlink("a.txt", hostile.path / "link")
    found = packed(repository, hostile, out, hostile.commit(hooks="x", environment="x"))
    found.check_harmless("")


@pytest.mark.parametrize("kind", ["link", "module"])
def test_links_that_lead_out_and_submodules_are_refused(
    repository: Repository, hostile: Repository, out: Path, kind: str
) -> None:
    if kind == "link":
        os.symlink("/etc/passwd", hostile.path / "x")
        commit = hostile.commit()
    else:
        commit = hostile.commit_tree(hostile.tree(("160000", "x", hostile.git("rev-parse", "HEAD"))))
    found = packed(repository, hostile, out, commit)
    with pytest.raises(AccessError, match="'x'"):
        found.check_harmless("")


@pytest.mark.parametrize(
    ("depth", "target", "out_of_it"),
    [
        (0, "a/b", False),
        (1, "../a", False),
        (2, ".././../a", False),
        (0, "../a", True),
        (1, "../../a", True),
        (0, "/etc", True),
        (3, "a/../b", True),  # a may be a link
        (0, ".git/config", True),
        (1, "../.GIT/hooks", True),
        (0, ".config/gcloud/x", True),
    ],
)
def test_where_links_lead(depth: int, target: str, out_of_it: bool) -> None:
    assert _leads_out(depth, target) == out_of_it
