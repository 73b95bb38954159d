"""Options as callers write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Environment
from cellblock.fronts.given_options import as_meant


def test_paths_are_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    given = {
        "working_dir": "work",
        "images_dir": "pics",
        "spill_dir": "./s/../s",
        "rules": "~/rules.toml",
        "sandbox_config": "p",
    }
    assert as_meant(given) == {
        "working_dir": str(tmp_path / "work"),
        "images_dir": str(tmp_path / "pics"),
        "spill_dir": str(tmp_path / "s"),
        "rules": "/home/somebody/rules.toml",
        "sandbox_config": str(tmp_path / "p"),
    }
    assert as_meant({"python": ".venv/bin/python"}) == {"python": str(tmp_path / ".venv/bin/python")}
    assert as_meant({"python": "python3.12"}) == {"python": "python3.12"}  # a command


def test_one_name_is_a_list_of_one_and_everything_else_stays() -> None:
    assert as_meant({"preload": "json", "packages": "six"}) == {"preload": ["json"], "packages": ["six"]}
    environment = as_meant({"environment": Environment(packages=["six"])})["environment"]
    assert environment == as_meant({"environment": environment})["environment"]
    assert environment["packages"] == ["six"]
    assert as_meant({"environment": "data"}) == {"environment": "data"}
    others = {"preload": ["a", "b"], "timeout": 3, "sandbox_config": {"network": {}}, "startup_code": "x", "working_dir": None}
    assert as_meant(others) == others
