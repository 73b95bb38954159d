"""The catalogue: names first, then signatures, then one module; from files that anybody may have written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cellblock.tools.apigen.package import write_package
from cellblock.tools.calling import actions, finder, search
from cellblock.tools.calling.content import ToolSpec

_PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two servers."""
    files = [
        ToolSpec("list_directory", "Get a detailed listing of all files in a folder. Sizes too.", _PATH),
        ToolSpec("readFile", "Read the content of a file.", _PATH),
        ToolSpec("write_file", "Write a file.\nIt is replaced if it exists.", _PATH),
    ]
    write_package(tmp_path, "files", files)
    write_package(
        tmp_path, "git", [ToolSpec("git_log", "Show commits.", _PATH), ToolSpec("git_commit", "Record changes.", {})]
    )
    return tmp_path


def test_without_words_all_tools_are_listed(root: Path) -> None:
    expected = ["files.list_directory", "files.readfile", "files.write_file", "git.git_log", "git.git_commit"]
    assert search.names(root_dir=root) == expected


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("list a directory", "files.list_directory"),
        ("read files", "files.readfile"),
        ("commits", "git.git_commit"),
        ("show commits", "git.git_log"),
        ("EXISTS replaced", "files.write_file"),
        ("sizes", "files.list_directory"),
        ("rec", "git.git_commit"),
    ],
)
def test_the_tool_that_words_are_about_comes_first(root: Path, words: str, first: str) -> None:
    assert search.names(words, root)[0] == first


def test_words_about_nothing_find_nothing(root: Path) -> None:
    assert search.names("quantum", root) == []
    assert search.names("!!!", root) == []
    assert search.names("file", root, limit=1) != search.names("file", root)


def test_signatures_are_on_request(root: Path) -> None:
    assert search.signatures("files.readfile", root_dir=root) == [
        "files.readfile(path: str) -> str  # Read the content of a file."
    ]
    assert len(search.signatures("git", root_dir=root)) == 2
    assert len(search.signatures(root_dir=root)) == 5


def test_one_module_in_full(root: Path) -> None:
    assert "class Params(ParamsModel):" in search.source("files.readfile", root)


def test_nothing_is_listed_where_there_is_nothing(tmp_path: Path) -> None:
    assert search.names("x", tmp_path / "missing") == []
    assert search.signatures(root_dir=tmp_path) == []


def test_it_reads_files_with_the_standard_library_and_imports_none_of_them(root: Path) -> None:
    (root / "git" / "__init__.py").write_text("raise SystemExit('imported')")
    code = (
        "import sys\n"
        "from cellblock.tools import search\n"
        f"found = search.names('commit', {str(root)!r})\n"
        "assert found == ['git.git_commit', 'git.git_log'], found\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'pydantic', 'mcp', 'asyncio', 'sqlite3'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_actions_rank_with_tools_and_the_best_have_signatures(root: Path, tmp_path: Path) -> None:
    api = 'def run(text: str) -> int:\n    """Count the words of a file."""\n'
    actions.save_action("text", "count_words", api, "def run(text):\n    return 1", root_dir=tmp_path / "gentools")
    write_package(root, "git", [ToolSpec("git_log", "Show commits.", _PATH)], instructions="Stage first.\n" * 50)
    first = finder.find([root, tmp_path / "gentools"], "count words in a file", [], "").partition("\n")[0]
    assert first == "gentools.text.count_words(text: str) -> int  # Count the words of a file."
    shown = finder.find([root], "comits", [], "").splitlines()
    assert shown[0] == f"{root.name}.git.git_log(path: str) -> str  # Show commits."
    assert shown[1].startswith(f"{root.name}.git says: Stage first. Stage first.")
    assert len(shown[1]) < 400
    assert shown[2] == "No tool is about 'comits'; did you mean 'commits'?"
    assert finder.find([root], "", ["git"], "").endswith("\n\ngit says:\n" + ("Stage first.\n" * 50).strip())


def test_tools_that_are_hardly_about_the_words_are_not_named(root: Path) -> None:
    assert search.names("a file which is replaced if it exists", root) == ["files.write_file"]
    assert search.names("what is in the file", root) == search.names("file", root)
    assert search.names("show commits", root) == ["git.git_log", "git.git_commit"]
    assert search.names("a list of commits in the file directory listing", root)[0] == "files.list_directory"
