"""What E2B's interpreter does beyond IPython, in the sessions of its clients; tests/fronts/e2b has what they see of it."""

from __future__ import annotations

import datetime
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cellblock.worker.e2b import Surroundings, plain


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    """Those of a session that works in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("KEPT", "before")
    return Surroundings()


def cell(code: str) -> SimpleNamespace:
    """Return what IPython tells of a cell that begins."""
    return SimpleNamespace(raw_cell=code)


def test_variables_are_for_the_cell_that_they_were_given_for(surroundings: Surroundings) -> None:
    surroundings.arm("one", hashlib.sha256(b"wanted").hexdigest(), {"KEPT": "changed", "NEW": "1"})
    surroundings.begin(cell("another"))  # somebody else's, who came first
    assert os.environ["KEPT"] == "before"
    surroundings.end()
    surroundings.begin(cell("wanted"))
    assert (os.environ["KEPT"], os.environ["NEW"]) == ("changed", "1")
    del os.environ["NEW"]  # as code can
    surroundings.end()
    assert (os.environ["KEPT"], "NEW" in os.environ) == ("before", False)
    surroundings.begin(cell("wanted"))
    assert os.environ["KEPT"] == "before"
    surroundings.end()
    surroundings.arm("two", hashlib.sha256(b"wanted").hexdigest(), {"KEPT": "changed"})
    surroundings.disarm("one")
    assert surroundings.armed
    surroundings.disarm("two")  # its cell was withdrawn before it began
    surroundings.begin(cell("wanted"))
    assert os.environ["KEPT"] == "before"


def test_a_cell_begins_where_the_last_one_ended(surroundings: Surroundings, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    surroundings.begin(cell("one"))
    os.chdir("below")
    surroundings.end()
    assert Path.cwd() == tmp_path
    surroundings.end()  # of a silent cell, which has no beginning
    surroundings.begin(cell("two"))
    assert Path.cwd() == tmp_path / "below"
    surroundings.end()
    (tmp_path / "below").rmdir()
    surroundings.begin(cell("three"))
    assert Path.cwd() == tmp_path


def test_a_directory_that_cannot_be_entered_is_not_entered(surroundings: Surroundings, tmp_path: Path) -> None:
    surroundings.enter("/nowhere")
    assert surroundings.directory == str(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    surroundings.enter(f"{tmp_path}/link")
    assert (surroundings.directory, os.environ["PWD"]) == (f"{tmp_path}/link", f"{tmp_path}/link")


def test_whatever_is_no_json_becomes_text() -> None:
    class Scalar:
        ndim = 0

        def item(self) -> int:
            return 7

    when = datetime.date(2026, 1, 2)
    assert plain({"a": [1, None, "x"], "b": when, "c": Scalar(), "d": {1}, (1, 2): "skipped"}) == {
        "a": [1, None, "x"],
        "b": "2026-01-02",
        "c": 7,
        "d": "{1}",
    }
