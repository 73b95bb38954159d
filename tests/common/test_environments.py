"""Declarations of environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock import Environment, InvalidInputError, SessionOptions
from cellblock.common.environments import PackageSet, check_name, read_environment


def test_inputs_add_up_and_become_data(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("two==2 --hash=sha256:" + "0" * 64)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["three"]\n[dependency-groups]\ndev = ["four"]\n')
    (tmp_path / "s.py").write_text('# /// script\n# dependencies = ["five", "one"]\n# ///\n')
    environment = Environment(
        packages=["one"], requirements=tmp_path / "r.txt", project=tmp_path, groups=["dev"], script=tmp_path / "s.py"
    )
    read = environment.read()
    assert read.packages == ("one", "two==2", "three", "four", "five")
    assert (read.base, read.exact, environment.read("empty").base) == ("interpreter", False, "empty")
    assert PackageSet.from_dict(read.to_dict()) == read
    assert SessionOptions(environment=environment).environment == read
    assert read_environment("data") == "data"


def test_mistakes_are_named() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"packages": "pandas"}, "must be a list such as"),
        ({"packages": ["-r x"]}, "packages of an environment: '-r x' is not supported"),
        ({"groups": ["dev"]}, "pass project="),
        ({"lock": "l", "packages": ["x"]}, "the lock of an environment is complete"),
        ({"base": "none"}, "'interpreter' or 'empty'"),
        ({"requirements": ""}, "must be a path"),
        ({"requirements": "/missing/r.txt"}, "/missing/r.txt cannot be read: No such file"),
        ({}, "names no packages"),
    ]
    for given, said in cases:
        with pytest.raises(InvalidInputError, match=said):
            Environment(**given).read()


def test_other_programs_send_no_files() -> None:
    cases: list[dict[str, Any]] = [
        {"packages": "x"},
        {"packages": ["x @ file:///etc/passwd"]},
        {"requirements": "/etc/passwd"},
        {"packages": ["x"], "hashes": {"x": "00"}},
        {"packages": ["x"], "hashes": {"x": ["00"]}},
        {"packages": ["x"], "exact": 1},
        {"packages": ["x"], "base": "other"},
        {"packages": ["x"], "title": "\x1b[2J"},
        {"packages": ["x"] * 3000},
    ]
    for data in cases:
        with pytest.raises(InvalidInputError):
            read_environment(data)


def test_names_are_names_of_files() -> None:
    cases: list[object] = ["", ".x", "../x", "a/b", "a b", "x" * 65, 3]
    for name in cases:
        with pytest.raises(InvalidInputError, match="the name of an environment"):
            check_name(name)


def test_packages_and_an_environment_exclude_each_other() -> None:
    with pytest.raises(InvalidInputError, match="not both"):
        SessionOptions(packages=["x"], environment="data")
