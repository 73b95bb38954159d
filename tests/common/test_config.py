"""What is taken from the environment, and from the file beside the program."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.common import config
from cellblock.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "limit", "newest"),
    [
        ("", 20 * 2**30, 0.0),
        ("environment_limit = 1000\nenvironment_newest = '7 days'", 1000, 7 * 86400.0),
        ("environment_newest = '1 hour'", 20 * 2**30, 3600.0),
        ("environment_limit = true", "environment_limit in /.* must be bytes, such as 21474836480, not True", 0.0),
        ("environment_limit = -1", "must be bytes", 0.0),
        ("environment_newest = 7", 20 * 2**30, "environment_newest in /.* must be an age such as '7 days', not 7"),
        ('environment_newest = "7 days\\n"', 20 * 2**30, "must be an age"),
    ],
)
def test_settings_of_packages_are_in_the_file(
    text: str, limit: int | str, newest: float | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLBLOCK_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text(text)
    for read, expected in ((config.environment_limit, limit), (config.environment_newest, newest)):
        if isinstance(expected, str):
            with pytest.raises(InvalidInputError, match=expected):
                read()
        else:
            assert read() == expected
    monkeypatch.setenv("KERNELBOX_ENVIRONMENT_LIMIT", "5")
    monkeypatch.setenv("CELLBLOCK_ENVIRONMENT_NEWEST", "2 weeks")
    assert (config.environment_limit(), config.environment_newest()) == (5, 14 * 86400.0)
    monkeypatch.setenv("CELLBLOCK_ENVIRONMENT_NEWEST", "soon")
    with pytest.raises(InvalidInputError, match="environment_newest in CELLBLOCK_ENVIRONMENT_NEWEST must be an age"):
        config.environment_newest()


def test_settings_of_packages_that_others_can_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    monkeypatch.setenv("CELLBLOCK_CONFIG", str(file))
    assert config.environment_newest() == 0.0, "without a file, there is no minimum age"
    file.write_text("environment_newest = '7 days'")
    file.chmod(0o666)
    with pytest.raises(InvalidInputError, match="is writable by other users"):
        config.environment_newest()


def found(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch, name: str = "KEY_OF_TEST") -> str | None:
    (directory / ".env").write_text(text)
    monkeypatch.chdir(directory)
    return config.server_environment().get(name)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY_OF_TEST=abc", "abc"),
        ("  export KEY_OF_TEST = abc  # a comment", "abc"),
        ("KEY_OF_TEST='a # b'", "a # b"),
        ('KEY_OF_TEST="a b" # c', "a b"),
        ("KEY_OF_TEST=a#b", "a#b"),
        ("KEY_OF_TEST=", ""),
        ("KEY_OF_TEST=${HOME}", "${HOME}"),
        ("# KEY_OF_TEST=abc", None),
        ("KEY OF_TEST=abc", None),
        ("OTHER=1\r\nKEY_OF_TEST=abc\r\n", "abc"),
    ],
)
def test_lines_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, value: str | None) -> None:
    assert found(tmp_path, line, monkeypatch) == value


def test_the_environment_comes_first_and_programs_get_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "mine")
    monkeypatch.delenv("SHELL", raising=False)
    assert found(tmp_path, "KEY_OF_TEST=file\nSHELL=/tmp/evil\n", monkeypatch) == "mine"
    assert "SHELL" not in config.server_environment()


def test_what_is_not_a_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").write_text("KEY_OF_TEST=abc")
    monkeypatch.chdir(tmp_path)
    makers: list[Callable[[], None]] = [
        lambda: os.symlink("other", ".env"),
        lambda: os.mkfifo(".env"),
        lambda: os.mkdir(".env"),
        lambda: None,
    ]
    for make in makers:
        make()
        assert "KEY_OF_TEST" not in config.server_environment()
        if os.path.lexists(".env"):
            (os.rmdir if os.path.isdir(".env") else os.unlink)(".env")


@pytest.mark.parametrize("variable", ["CELLBLOCK_HOME", "KERNELBOX_HOME", "XDG_STATE_HOME", "HOME"])
@pytest.mark.parametrize("path", ["state", "./state", "../state", "~/state", "."])
def test_a_relative_state_directory_is_refused(variable: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELLBLOCK_HOME", "KERNELBOX_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, path)
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=f"{variable} must be an absolute path, not '{re.escape(path)}'"):
            config.state_directory()


@pytest.mark.parametrize("variable", ["CELLBLOCK_CONFIG", "XDG_CONFIG_HOME", "HOME"])
def test_a_relative_path_of_settings_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELLBLOCK_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "settings.toml")
    with pytest.raises(InvalidInputError, match=f"{variable} must be an absolute path"):
        config.settings_file()


def test_empty_variables_mean_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELLBLOCK_HOME", "KERNELBOX_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "CELLBLOCK_CONFIG"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.state_directory() == tmp_path / ".local/state/cellblock"
    assert config.settings_file() == tmp_path / ".config/cellblock/config.toml"
