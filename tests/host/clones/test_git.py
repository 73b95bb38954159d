"""git on the host runs no program of a repository, and has limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import UnsupportedError
from cellblock.host.clones import git
from cellblock.host.clones.git import GitError, run_git
from git_repositories import Repository


def test_variables_do_not_lead_git_to_another_repository(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert run_git(str(repository.path), "log", "--format=%s") == b"a commit\n"


def test_hooks_of_a_repository_do_not_run(repository: Repository, tmp_path: Path) -> None:
    hook = repository.path / ".git/hooks/reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    repository.git("update-ref", "refs/x", "HEAD")
    (tmp_path / "ran").unlink()  # it runs without this
    run_git(str(repository.path), "update-ref", "refs/y", "HEAD")
    assert not (tmp_path / "ran").exists()


def test_a_failure_says_what_git_says(repository: Repository) -> None:
    with pytest.raises(GitError, match="not a valid SHA1") as raised:
        run_git(str(repository.path), "update-ref", "refs/x", "nothing")
    assert raised.value.status == 128
    with pytest.raises(GitError, match="git rev-parse ended with status 1"):
        run_git(str(repository.path), "rev-parse", "--verify", "--quiet", "nothing")
    assert run_git(str(repository.path), "config", "no.such", accept=(0, 1)) == b""


def test_output_has_a_limit(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "MOST", 3)
    with pytest.raises(GitError, match="the output of git cat-file exceeds"):
        run_git(str(repository.path), "cat-file", "blob", "HEAD:a.txt")


def test_settings_of_the_user_do_not_apply_to_objects_of_a_session(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[my]\n\tname = x\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_git(str(repository.path), "config", "my.name") == b"x\n"
    assert run_git(str(repository.path), "config", "my.name", accept=(0, 1), untrusted=True) == b""


def test_a_machine_without_git_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="only if git is installed"):
        run_git(str(tmp_path), "version")
