"""The user's repository: what can be cloned, and what is written to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock import InvalidInputError, UnsupportedError
from cellblock.errors import ConflictError, StateError
from cellblock.host.clones.project import Project, find_repository
from git_repositories import Repository


def project_of(repository: Repository) -> Project:
    path = os.path.realpath(repository.path)
    return Project(path, find_repository(path))


def test_a_repository_is_found_at_its_top_only(repository: Repository, tmp_path: Path) -> None:
    top = repository.path
    (top / "folder").mkdir()
    (tmp_path / "other").mkdir()
    assert find_repository(str(top)) == str(top / ".git")
    with pytest.raises(InvalidInputError, match=f"is a folder of the git repository {top}"):
        find_repository(str(top / "folder"))
    with pytest.raises(InvalidInputError, match=r"is not a git repository, .* run 'git init'"):
        find_repository(str(tmp_path / "other"))


def test_touched_files_are_no_changes(repository: Repository) -> None:
    os.utime(repository.path / "a.txt", (1, 1))
    assert project_of(repository).check(changes=True) == repository.git("rev-parse", "HEAD")


def test_a_worktree_shares_the_repository(repository: Repository, tmp_path: Path) -> None:
    repository.git("worktree", "add", "--quiet", str(tmp_path / "tree"))
    assert find_repository(str(tmp_path / "tree")) == str(repository.path / ".git")
    project = Project(str(tmp_path / "tree"), str(repository.path / ".git"))
    assert project.check(changes=False) == repository.git("rev-parse", "HEAD")


def submodule(repository: Repository) -> None:
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{repository.git('rev-parse', 'HEAD')},sub")
    repository.git("commit", "--quiet", "-m", "a submodule")


def lfs(repository: Repository) -> None:
    (repository.path / "data").mkdir()
    (repository.path / "data/.gitattributes").write_text("*.bin filter=lfs diff=lfs\n")
    repository.commit()


def partial(repository: Repository) -> None:
    repository.git("config", "remote.origin.promisor", "true")


def shallow(repository: Repository) -> None:
    (repository.path / ".git/shallow").write_text(repository.git("rev-parse", "HEAD") + "\n")


def alternates(repository: Repository) -> None:
    (repository.path / ".git/objects/info/alternates").write_text("/nowhere\n")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (submodule, "it has submodules: work in"),
        (lfs, "it has files of Git LFS: work without a clone"),
        (partial, "it is a partial clone: use a complete clone"),
        (shallow, "it is a shallow clone: fetch its whole history"),
        (alternates, "it shares objects with another one: run 'git repack -a -d'"),
    ],
)
def test_what_a_clone_cannot_share_is_refused(repository: Repository, make: Callable[[Repository], None], why: str) -> None:
    project = project_of(repository)
    assert project.check(changes=False) == repository.git("rev-parse", "HEAD")
    make(repository)
    with pytest.raises(UnsupportedError, match=why):
        project.check(changes=False)


def test_a_repository_needs_a_commit(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="it has no commit; commit there"):
        project_of(Repository(tmp_path / "empty")).check(changes=False)


def test_a_commit_is_pinned_until_it_is_unpinned(repository: Repository) -> None:
    project, commit = project_of(repository), repository.git("rev-parse", "HEAD")
    project.pin("refs/cellblock/1", commit)
    assert project.pinned("refs/cellblock/1") == commit
    project.unpin("refs/cellblock/1")
    with pytest.raises(StateError, match="refs/cellblock/1 is missing"):
        project.pinned("refs/cellblock/1")


def test_commits_have_the_author_of_the_project(repository: Repository) -> None:
    assert project_of(repository).settings() == {"user.name": "Ada", "user.email": "ada@example.org"}


def patch_of(repository: Repository) -> bytes:
    """Return a patch that adds a line, and go back to before it."""
    (repository.path / "a.txt").write_text("one\ntwo\n")
    patch = (repository.git("diff", "--full-index") + "\n").encode()
    repository.git("checkout", "--", ".")
    return patch


def test_a_patch_is_applied_whole_or_not_at_all(repository: Repository) -> None:
    project, patch = project_of(repository), patch_of(repository)
    (repository.path / "a.txt").write_text("another\n")
    with pytest.raises(ConflictError, match=r"(?s)do not fit the working copy .* pass three_way=True \(--3way\)"):
        project.apply(patch, three_way=False)
    assert (repository.path / "a.txt").read_text() == "another\n"
    repository.git("checkout", "--", ".")
    project.apply(patch, three_way=False)
    assert (repository.path / "a.txt").read_text() == "one\ntwo\n"


def test_a_three_way_merge_marks_conflicts(repository: Repository) -> None:
    project, patch = project_of(repository), patch_of(repository)
    repository.commit(**{"a.txt": "another\n"})
    assert project.apply(patch, three_way=True).conflicts == ("a.txt",)
    assert "<<<<<<<" in (repository.path / "a.txt").read_text()


def test_a_three_way_merge_takes_touched_files(repository: Repository) -> None:
    project, patch = project_of(repository), patch_of(repository)
    os.utime(repository.path / "a.txt", (1, 1))
    assert project.apply(patch, three_way=True).conflicts == ()
    assert (repository.path / "a.txt").read_text() == "one\ntwo\n"


def test_a_directory_of_hooks_in_the_working_copy_is_known(repository: Repository) -> None:
    project = project_of(repository)
    assert project.hooks() == ""
    repository.git("config", "core.hooksPath", ".githooks")
    assert project.hooks() == ".githooks"
    repository.git("config", "core.hooksPath", "/elsewhere")
    assert project.hooks() == ""
