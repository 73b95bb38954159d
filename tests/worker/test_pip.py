"""Finding ``pip install`` in lines of the shell."""

from __future__ import annotations

import sys

import pytest

from cellblock.worker.pip import MAX_LINE, installs, installs_among_others


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("pip install six", ["six"]),
        ("pip3 install -q 'six>=1'  # for later", ["-q", "six>=1"]),
        ("python -m pip install six", ["six"]),
        (f"{sys.executable} -m pip install six", ["six"]),
        ("uv pip install --system six", ["six"]),
        ("PIP_NO_INPUT=1 pip install six", ["six"]),
        ("pip install six==1.0", ["six==1.0"]),
    ],
)
def test_a_line_that_installs(command: str, arguments: list[str]) -> None:
    assert installs(command) == arguments


@pytest.mark.parametrize(
    "command",
    ["pip install six && ls", "cd x; pip install .", "pip install six > log", "true | pip install six", "pip install six>=1"],
)
def test_a_line_that_installs_among_others(command: str) -> None:
    assert installs(command) is None
    assert installs_among_others(command)


def test_a_line_that_would_take_long_to_read_is_not_looked_at() -> None:
    assert installs("pip install " + "a" * MAX_LINE) is None
    assert not installs_among_others("ls; pip install " + "a" * MAX_LINE)


@pytest.mark.parametrize(
    "command",
    [
        "echo pip install six",
        "grep 'pip install' README",
        "pip list",
        "/other/bin/python -m pip install six",
        "ls",
        "",
        "echo 'x",
    ],
)
def test_other_lines(command: str) -> None:
    assert installs(command) is None
    assert not installs_among_others(command)
