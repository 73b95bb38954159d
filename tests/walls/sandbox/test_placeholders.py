"""Placeholders: made where a protected name is missing, shared, and removed by the last who needs them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellblock.walls.sandbox import placeholders
from cellblock.walls.sandbox.placeholders import Hold, is_placeholder, is_project, names_to_keep


@pytest.fixture
def held(tmp_path: Path) -> Iterator[list[Hold]]:
    """What to close after a test."""
    holds: list[Hold] = []
    yield holds
    for hold in holds:
        hold.close()


def take(held: list[Hold], top: Path, *names: str) -> Hold:
    """Take a hold, and make what is missing."""
    hold = Hold.take(str(top), names)
    assert hold is not None
    held.append(hold)
    hold.fill()
    return hold


def test_a_placeholder_is_an_empty_directory_that_can_be_told_from_others(tmp_path: Path, held: list[Hold]) -> None:
    hold = take(held, tmp_path, ".vscode", ".mcp.json")
    assert sorted(os.listdir(tmp_path)) == [".mcp.json", ".vscode"]
    assert all(is_placeholder((tmp_path / name).lstat().st_mode) for name in (".mcp.json", ".vscode"))
    assert os.listdir(tmp_path / ".vscode") == []
    hold.release()
    assert os.listdir(tmp_path) == []
    hold.release()


@pytest.mark.parametrize("name", [".git", ".env", ".mcp.json", ".npmrc"])
def test_a_directory_with_a_protected_name_is_a_project_and_so_is_what_is_in_a_repository(tmp_path: Path, name: str) -> None:
    (deep := tmp_path / "a" / "b").mkdir(parents=True)
    assert not is_project(str(tmp_path))
    (tmp_path / name).symlink_to("nowhere")
    assert is_project(str(tmp_path))
    assert is_project(str(deep)) == (name == ".git")


def test_placeholders_make_no_project_and_what_a_policy_adds_is_always_kept(tmp_path: Path, held: list[Hold]) -> None:
    names = (".vscode", ".env", "secret", ".bashrc")
    take(held, tmp_path, ".vscode")
    assert names_to_keep(str(tmp_path), names) == ("secret", ".bashrc")
    (tmp_path / ".claude").mkdir()
    assert names_to_keep(str(tmp_path), names) == names


def test_the_mark_is_the_mode() -> None:
    cases: list[tuple[int, bool]] = [
        (0o041500, True),
        (0o043500, True),
        (0o040500, False),
        (0o041700, False),
        (0o101500, False),
    ]
    for mode, known in cases:
        assert is_placeholder(mode) is known


def test_the_last_one_removes_them(tmp_path: Path, held: list[Hold]) -> None:
    first, second, third = (take(held, tmp_path, ".vscode") for _ in range(3))
    second.release()
    first.release()
    assert (tmp_path / ".vscode").exists()
    third.release()
    assert not (tmp_path / ".vscode").exists()
    # Also those that others asked for.
    first, second = take(held, tmp_path, ".vscode", ".env"), take(held, tmp_path, ".idea")
    first.release()
    second.release()
    assert os.listdir(tmp_path) == []


def test_a_hold_lasts_as_long_as_any_copy_of_its_descriptor(tmp_path: Path, held: list[Hold]) -> None:
    lasting, ending = take(held, tmp_path, ".vscode"), take(held, tmp_path, ".vscode")
    copy = os.dup(lasting.descriptor)
    held.remove(lasting)
    lasting.close()
    ending.release()
    assert (tmp_path / ".vscode").exists()
    os.close(copy)


def test_what_was_left_behind_is_adopted(tmp_path: Path, held: list[Hold]) -> None:
    code = """
import os, sys
from cellblock.walls.sandbox.placeholders import Hold
Hold.take(sys.argv[1], ['.vscode']).fill()
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert is_placeholder((tmp_path / ".vscode").lstat().st_mode)
    take(held, tmp_path, ".vscode").release()
    assert os.listdir(tmp_path) == []


def test_what_was_there_before_is_not_touched(tmp_path: Path, held: list[Hold]) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".mcp.json").write_text("ours")
    (tmp_path / ".idea").symlink_to("/nowhere")
    before = {name: (tmp_path / name).lstat() for name in os.listdir(tmp_path)}
    take(held, tmp_path, ".vscode", ".mcp.json", ".idea").release()
    assert {name: (tmp_path / name).lstat() for name in os.listdir(tmp_path)} == before


def test_what_a_person_makes_of_a_placeholder_stays(tmp_path: Path, held: list[Hold]) -> None:
    hold = take(held, tmp_path, ".vscode", ".idea", ".claude")
    (tmp_path / ".vscode").chmod(0o700)
    (tmp_path / ".idea").chmod(0o700)
    (tmp_path / ".idea" / "file").write_text("mine")
    (tmp_path / ".idea").chmod(0o1500)
    hold.release()
    assert sorted(os.listdir(tmp_path)) == [".idea", ".vscode"]
    assert (tmp_path / ".idea" / "file").read_text() == "mine"
    (tmp_path / ".idea").chmod(0o700)


def test_of_a_path_the_first_part_that_is_missing_is_made(tmp_path: Path, held: list[Hold]) -> None:
    (tmp_path / "a").mkdir()
    hold = take(held, tmp_path, "a/b/c", "a/b/d", "x/y")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["a", "a/b", "x"]
    hold.release()
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a"]


def test_where_a_link_leads_is_kept_too_and_no_link_is_followed(tmp_path: Path, held: list[Hold]) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    top.mkdir()
    outside.mkdir()
    (top / ".mcp.json").symlink_to("later/mcp.json")
    (top / "way").symlink_to("../outside")
    hold = take(held, top, ".mcp.json", "way/settings")
    assert is_placeholder((top / "later").lstat().st_mode)
    assert os.listdir(outside) == []
    hold.release()
    assert sorted(os.listdir(top)) == [".mcp.json", "way"]


def failing(number: int) -> Callable[..., None]:
    """Return a function that fails with an error of the system."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_what_nobody_may_make_is_left_out_and_any_other_failure_is_an_error(
    tmp_path: Path, held: list[Hold], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (errno.EACCES, errno.EPERM, errno.EROFS):
        monkeypatch.setattr(os, "mkdir", failing(number))
        take(held, tmp_path, ".vscode").release()
    monkeypatch.setattr(os, "mkdir", failing(errno.ENOSPC))
    with pytest.raises(OSError, match=r"cannot block the creation of \.vscode: No space"):
        take(held, tmp_path, ".vscode")


def test_a_directory_that_somebody_else_locks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: list[Hold]
) -> None:
    monkeypatch.setattr(placeholders, "_PATIENCE", 0.02)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(OSError, match="is locked"):
        Hold.take(str(tmp_path), [".vscode"])
    os.close(other)
    take(held, tmp_path, ".vscode").release()


def test_a_file_system_without_locks_keeps_placeholders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: list[Hold]
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    take(held, tmp_path, ".vscode").release()
    assert is_placeholder((tmp_path / ".vscode").lstat().st_mode)


def test_in_what_is_no_directory_nothing_is_held(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Hold.take(str(tmp_path / "file"), ["x"]) is None
    assert Hold.take(str(tmp_path / "missing"), ["x"]) is None
