"""What is read by hand means what typer reads in it."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.cli import app, execute, main
from cellblock.cli.quick import plain

LINES = [
    ["--name", "a", "1"],
    ["--name=a", "1"],
    ["1", "--name", "a"],
    ["--id", "a", "--bash", "echo"],
    ["--name", "a", "--timeout", "3", "1"],
    ["--name", "a", "--timeout=-3", "1"],
    ["--name", "a", "--file", "f.py"],
    ["--name", "a", "--json", "-"],
    ["--name", "a", "--name", "b", "1"],
    ["--name", "", "1"],
    ["--name", "--bash", "1"],
    ["--name", "a", "x = '--bash'"],
    ["--name", "a"],
    [],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_both_read_the_same(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def run(**given: Any) -> int:
        seen.append(given)
        return 0

    monkeypatch.setattr(execute, "run", run)
    assert main(["exec", *line]) == 0
    assert plain(line) == seen[0]
    assert app.run(["exec", *line]) == 0
    assert {name: value for name, value in seen[1].items() if value not in (None, False)} == {
        name: value for name, value in seen[0].items() if value not in (None, False)
    }


@pytest.mark.parametrize(
    "line",
    [
        ["--help"],
        ["-h"],
        ["--nmae", "a", "1"],
        ["--name", "a", "-f", "x.py"],
        ["--name"],
        ["--name", "a", "1", "2"],
        ["--", "1"],
    ],
    ids=" ".join,
)
def test_everything_else_is_left_to_typer(line: list[str]) -> None:
    assert plain(line) is None
