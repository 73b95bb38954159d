"""The repositories that git enters from the top of a workspace, read from git's own files."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from cellblock.walls.sandbox.repositories import find_repositories, protect_repositories
from cellblock.wire.sandbox import Plan, Protect, Restrictions, Step


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def plan(*steps: Step, **reserve: tuple[str, ...]) -> Plan:
    return Plan(everything=False, home="", steps=steps, reserve=dict(reserve), restrictions=Restrictions({}, 0, ""))


def test_submodules_are_found_by_gitmodules(tmp_path: Path) -> None:
    written(tmp_path / ".gitmodules", '[submodule "a"]\n\tpath = libs/a\n\turl = x\n[submodule "b"]\npath="b c"\n')
    assert find_repositories(str(tmp_path)) == ["libs/a/.git", "b c/.git"]


def test_submodules_are_found_by_what_git_keeps_of_them(tmp_path: Path) -> None:
    """A submodule that .gitmodules no longer names is entered all the same, and one may lie in another."""
    written(tmp_path / ".git/modules/group/a/config", "[core]\n\tworktree = ../../../../a\n")
    written(tmp_path / ".git/modules/group/a/modules/inner/config", "[core]\n\tworktree = ../../../../../../a/inner\n")
    assert find_repositories(str(tmp_path)) == ["a/.git", "a/inner/.git"]


def test_worktrees_in_the_workspace_are_found(tmp_path: Path) -> None:
    written(tmp_path / ".git/worktrees/w/gitdir", f"{tmp_path}/trees/w/.git\n")
    written(tmp_path / ".git/worktrees/odd/gitdir", f"{tmp_path}/trees/odd\n")
    assert find_repositories(str(tmp_path)) == ["trees/w/.git"]


def test_what_lies_elsewhere_or_in_git_itself_is_not_the_workspaces(tmp_path: Path) -> None:
    written(tmp_path / ".gitmodules", "path = ../outside\npath = .\npath = .git/modules/x\npath = /etc\npath = in/../../out\n")
    assert find_repositories(str(tmp_path)) == []


def test_settings_are_read_as_git_reads_them(tmp_path: Path) -> None:
    text = '[submodule "a"] path = a\n[submodule "b"]\n\tPATH=b # of ours\n\tpath = "c;d"\n\tpathos = e\n\tpath\n\tpath =\n'
    written(tmp_path / ".gitmodules", text)
    assert find_repositories(str(tmp_path)) == ["a/.git", "b/.git", "c;d/.git"]


@pytest.mark.parametrize(
    "text",
    [
        " " * 260_000,
        "\n" * 260_000,
        "path = ..\n" * 26_000,
        "path=" + " x" * 130_000,
        "[" * 260_000,
        "path" + " " * 250_000 + "= a",
    ],
)
def test_files_that_a_session_wrote_are_read_in_a_moment(tmp_path: Path, text: str) -> None:
    """The process that reads them starts the kernels of other sessions, too."""
    written(tmp_path / ".gitmodules", text)
    for number in range(20):
        written(tmp_path / f".git/modules/{number}/config", text)
    begin = time.thread_time()
    find_repositories(str(tmp_path))
    assert time.thread_time() - begin < 1  # 20 ms on an idle machine, and minutes with a regular expression that goes back


@pytest.mark.slow
def test_a_tree_without_end_is_left(tmp_path: Path) -> None:
    for path in itertools.product("abcdefgh", repeat=4):
        (tmp_path / ".git/modules" / "/".join(path)).mkdir(parents=True, exist_ok=True)
    begin = time.thread_time()
    assert find_repositories(str(tmp_path)) == []
    assert time.thread_time() - begin < 1


def test_there_are_only_so_many(tmp_path: Path) -> None:
    written(tmp_path / ".gitmodules", "".join(f"path = m{number}\n" for number in range(1000)))
    assert len(find_repositories(str(tmp_path))) == 256


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "missing"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    written(tmp_path / "elsewhere", "path = a\n")
    place = tmp_path / ".gitmodules"
    match kind:
        case "link":
            place.symlink_to("elsewhere")
        case "pipe":
            os.mkfifo(place)
        case "directory":
            place.mkdir()
    assert find_repositories(str(tmp_path)) == []


def test_a_plan_protects_them_if_it_protects_what_names_them(tmp_path: Path) -> None:
    top = str(tmp_path)
    written(tmp_path / ".gitmodules", "path = a\npath = b\n")
    protected = protect_repositories(plan(Protect(top, f"{top}/.git"), **{top: (".vscode", "b/.git")}))
    assert protected.steps == (Protect(top, f"{top}/.git"), Protect(top, f"{top}/a/.git"))
    assert protected.reserve == {top: (".vscode", "b/.git", "a/.git")}
    bare = plan(Protect(top, f"{top}/.vscode"))
    assert protect_repositories(bare) is bare
