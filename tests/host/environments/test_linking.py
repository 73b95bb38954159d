"""Files that sandboxes wrote are checked and linked without following a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock.host.environments.linking import check_tree, link_tree, opened, unlink


def check(tree: Path, most_bytes: int = 1000, most_files: int = 100) -> tuple[int, int]:
    with opened(str(tree)) as directory:
        return check_tree(directory, most_bytes, most_files)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "x.py").write_text("1234")
    return tmp_path / "tree"


def test_plain_files_are_accepted_and_counted(tree: Path) -> None:
    assert check(tree) == (4, 2)


@pytest.mark.parametrize("kind", ["link", "hard", "fifo", "setuid", "loop"])
def test_anything_else_is_refused(tree: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").write_text("")
    evil = tree / "a" / "evil"
    match kind:
        case "link":
            evil.symlink_to(tmp_path / "secret")
        case "hard":
            evil.hardlink_to(tmp_path / "secret")
        case "fifo":
            os.mkfifo(evil)
        case "setuid":
            evil.write_text("")
            evil.chmod(0o4755)
        case "loop":
            evil.symlink_to(tree)
    with pytest.raises(ValueError, match="'a/evil' is not expected"):
        check(tree)


def test_too_much_is_refused(tree: Path) -> None:
    with pytest.raises(ValueError, match="more than"):
        check(tree, most_bytes=3)
    with pytest.raises(ValueError, match="more than"):
        check(tree, most_files=1)


@pytest.mark.parametrize("copy", [False, True])
def test_files_are_linked_next_to_others(tree: Path, tmp_path: Path, copy: bool) -> None:
    target = tmp_path / "target"
    (target / "a").mkdir(parents=True)
    (target / "a" / "y.py").write_text("other")
    with opened(str(tree)) as ours, opened(str(target)) as theirs:
        link_tree(ours, theirs, copy=copy)
        link_tree(ours, theirs, copy=copy)
        assert (target / "a" / "x.py").samefile(tree / "a" / "x.py") is not copy
        assert {path.name for path in (target / "a").iterdir()} == {"x.py", "y.py"}
        unlink("a/x.py", theirs)
        unlink("a/none/x.py", theirs)
        assert {path.name for path in (target / "a").iterdir()} == {"y.py"}
        unlink("a/y.py", theirs)
    assert not (target / "a").exists()
    assert (tree / "a" / "x.py").exists()


def test_a_link_in_the_target_leads_nowhere(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "x.py").write_text("mine")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a").symlink_to(tmp_path / "victim")
    with opened(str(tree)) as ours, opened(str(tmp_path / "target")) as theirs:
        link_tree(ours, theirs)
        unlink("a/x.py", theirs)
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["x.py"]
