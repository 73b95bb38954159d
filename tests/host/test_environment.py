"""What a kernel is given to live in; every complaint names the argument and says what to do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cellblock.errors import InterpreterError, InvalidInputError
from cellblock.host.environment import (
    check_directory,
    check_modules,
    check_writable,
    find_interpreter,
    kernel_environment,
)
from cellblock.wire.control import Setup
from cellblock.wire.datagrams import MAX_CONTROL, encode_control

not_root = pytest.mark.skipif(os.getuid() == 0, reason="nothing is forbidden to root")


@pytest.fixture
def environment_directory(tmp_path: Path) -> Path:
    """What looks like a virtual environment."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "pyvenv.cfg").write_text("")
    return tmp_path


# -- interpreters -------------------------------------------------------------------------------------------------------


def test_without_a_wish_it_is_the_interpreter_that_runs_this(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_interpreter(None) == sys.executable
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(InterpreterError, match="pass python="):
        find_interpreter(None)


def test_a_path_and_a_virtual_environment_name_an_interpreter(environment_directory: Path) -> None:
    python = environment_directory / "bin" / "python"
    assert find_interpreter(environment_directory) == find_interpreter(str(python)) == str(python)
    assert str(python) != os.path.realpath(sys.executable), "a link is not followed"


def test_a_path_leads_through_no_parent_directory(
    environment_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "below")
    python = os.path.join(os.path.realpath(environment_directory), "bin", "python")
    up = os.path.relpath(environment_directory, tmp_path / "elsewhere")  # from where the link leads, as the system goes
    monkeypatch.setattr(sys, "executable", str(tmp_path / "link" / ".." / up / "bin" / "python"))
    assert find_interpreter(None) == find_interpreter(sys.executable) == python


def test_a_command_is_found_on_the_systems_path_and_not_on_the_callers(
    environment_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(environment_directory / "bin"))
    monkeypatch.chdir(environment_directory)
    assert find_interpreter("sh") in {f"{place}/sh" for place in ("/bin", "/usr/bin", "/usr/local/bin")}
    (environment_directory / "bin" / "python-of-mine").symlink_to(sys.executable)
    with pytest.raises(InterpreterError, match="no Python interpreter at python-of-mine"):
        find_interpreter("python-of-mine")


@pytest.mark.parametrize("name", ["/nowhere/python", "no-such-command", "", "./python"])
def test_an_interpreter_that_cannot_be_run_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InterpreterError, match="pass the path of one, or of a virtual environment that has IPython"):
        find_interpreter(name)


# -- modules ------------------------------------------------------------------------------------------------------------


def test_modules_are_checked_and_named_once_in_order() -> None:
    assert check_modules(["numpy", "os.path", "numpy", "_private"]) == ("numpy", "os.path", "_private")
    assert check_modules(()) == ()


def test_one_string_is_taken_for_a_mistake() -> None:
    with pytest.raises(InvalidInputError, match=r"preload=\('numpy',\)"):
        check_modules("numpy")


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", ".a", "a.", "a..b", "--help", "a;b", "é", "a\n", 1, None])
def test_what_is_no_name_of_a_module_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"preload: .* is not the name of a module"):
        check_modules([name])


# -- variables ----------------------------------------------------------------------------------------------------------


def test_nothing_comes_from_the_hosts_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "swordfish")
    monkeypatch.setenv("PATH", "/swordfish")
    monkeypatch.setenv("HOME", "/swordfish")
    environment = kernel_environment(sys.executable, {})
    assert "swordfish" not in str(environment)


def test_the_base_is_small_and_known() -> None:
    base = {
        "PATH",
        "HOME",
        "USER",
        "SHELL",
        "LANG",
        "TERM",
        "PYTHONUNBUFFERED",
        "MPLBACKEND",
        "PLOTLY_RENDERER",
        "GIT_OPTIONAL_LOCKS",
    }
    assert set(kernel_environment("/usr/bin/python3", {})) == base


def test_the_interpreters_own_commands_come_first(environment_directory: Path) -> None:
    environment = kernel_environment(str(environment_directory / "bin" / "python"), {})
    assert environment["PATH"].split(":")[0] == str(environment_directory / "bin")
    assert environment["VIRTUAL_ENV"] == str(environment_directory)


def test_the_caller_wins_over_the_base() -> None:
    environment = kernel_environment("/usr/bin/python3", {"HOME": "/mine", "EMPTY": "", "ÜMLAUT": "ß"})
    assert (environment["HOME"], environment["EMPTY"], environment["ÜMLAUT"]) == ("/mine", "", "ß")


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"": "x"}, "cannot be in an environment"),
        ({"a=b": "x"}, "cannot be in an environment"),
        ({"a\0": "x"}, "cannot be in an environment"),
        ({"a": "x\0"}, "cannot be in an environment"),
        ({"a": 1}, "must be strings"),
        ({"a": None}, "must be strings"),
        ({1: "a"}, "must be strings"),
        ({"a": "\ud800"}, "lone surrogate"),
        ({"\ud800": "a"}, "lone surrogate"),
        ({"a": "x" * MAX_CONTROL}, "pass a file instead"),
        ({str(number): "x" * 1000 for number in range(200)}, "pass a file instead"),
    ],
)
def test_what_cannot_be_in_an_environment_is_refused(extra: Any, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^kernel_env: .*{complaint}"):
        kernel_environment("/usr/bin/python3", extra)


def test_the_largest_environment_fits_into_one_control_message() -> None:
    limit = MAX_CONTROL * 3 // 4
    room = limit - len(json.dumps(kernel_environment("/usr/bin/python3", {"A": ""})))
    environment = kernel_environment("/usr/bin/python3", {"A": "x" * room})
    assert encode_control(Setup(environment, "/" + "d" * 4096, "/" + "d" * 4096, "/tmp/.packages"))
    with pytest.raises(InvalidInputError, match=f"over the limit of {limit}"):
        kernel_environment("/usr/bin/python3", {"A": "x" * (room + 1)})


# -- directories --------------------------------------------------------------------------------------------------------


def test_a_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_directory("working_dir", ".") == tmp_path.resolve()


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_directory_that_is_none_is_named_with_its_argument(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InvalidInputError, match=f"working_dir: .*{name} is (not a directory; create it first|a file, not a directory)"
    ):
        check_directory("working_dir", tmp_path / name)


@not_root
def test_a_directory_that_cannot_be_entered_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o600)
    with pytest.raises(InvalidInputError, match=r"working_dir: .*closed cannot be entered by this user"):
        check_directory("working_dir", tmp_path / "closed")


def test_a_directory_to_write_to_may_still_have_to_be_made(tmp_path: Path) -> None:
    assert check_writable("images_dir", tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_in_the_way_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match=r"images_dir: .*/file is not a directory"):
        check_writable("images_dir", tmp_path / path)


def test_a_directory_that_cannot_be_written_to_says_to_choose_another() -> None:
    with pytest.raises(InvalidInputError, match=r"images_dir: .* cannot be written to by this user; choose another directory"):
        check_writable("images_dir", "/proc/self/images")


def test_links_are_resolved_but_for_those_that_sessions_can_make(tmp_path: Path) -> None:
    workspace, other = tmp_path / "workspace", tmp_path / "other"
    workspace.mkdir()
    other.mkdir()
    (tmp_path / "link").symlink_to(workspace)
    (workspace / "images").symlink_to(other)
    shared = [str(workspace)]
    assert check_writable("images_dir", workspace / "images" / "a") == other / "a"
    assert check_writable("images_dir", workspace / "images" / "a", shared) == workspace / "images" / "a"
    assert check_writable("images_dir", tmp_path / "link" / "images", shared) == workspace / "images"
    assert check_writable("images_dir", tmp_path / "link" / ".." / "link" / "images", shared) == workspace / "images"
    assert check_writable("images_dir", workspace / ".." / "other", shared) == other
    assert check_writable("images_dir", workspace, shared) == workspace
