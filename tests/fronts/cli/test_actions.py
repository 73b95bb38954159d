"""`cellblock actions`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellblock
from cellblock.fronts.cli import main

API = '''def run(text: str, least: int = 1) -> dict[str, int]:
    """Count the words of a text."""
'''
IMPL = """from collections import Counter


def run(text, least=1):
    return {word: count for word, count in Counter(text.split()).items() if count >= least}
"""


@pytest.fixture(scope="module", autouse=True)
def workspace(daemon: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        Path("api.py").write_text(API)
        Path("impl.py").write_text(IMPL)
        assert main(["actions", "save", "text.count_words", "api.py", "impl.py"]) == 0
        yield


def test_they_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["actions", "list", "words"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["action"] == "text.count_words"
    assert found["signature"].endswith("# Count the words of a text.")
    assert main(["actions", "show", "text.count_words"]) == 0
    assert "_run(text=text, least=least)" in capsys.readouterr().out
    assert main(["actions", "show", "--impl", "gentools.text.count_words"]) == 0
    assert capsys.readouterr().out.startswith("from collections import Counter\n")


@pytest.mark.parametrize("name", [pytest.param([], marks=pytest.mark.slow), ["--name", "counting"]])
def test_one_is_run_in_a_session(name: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["actions", "run", "text.count_words", 'text=it\'s "a" or "a"', "least=2", *name]) == 0
    assert json.loads(capsys.readouterr().out)["return_value"] == "{'\"a\"': 2}"
    assert [record.name for record in cellblock.list_kernels()] == name[1:]


def test_what_is_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status, message in (
        (["show", "text.count_word"], 1, "there is no action text.count_word in gentools/; did you mean 'text.count_words'?"),
        (["show", "../etc"], 2, "an action is called CATEGORY.NAME"),
        (["save", "text.count_words", "api.py", "impl.py"], 2, "replace=True"),
        (["save", "text.other", "none.py", "impl.py"], 2, "none.py: No such file or directory"),
        (["run", "text.count_words", "text"], 2, "arguments are PARAMETER=VALUE, not 'text'"),
    ):
        assert main(["actions", *arguments]) == status
        assert message in capsys.readouterr().err
