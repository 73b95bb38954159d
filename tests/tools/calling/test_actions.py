"""Code actions and parsers: saved, found, shown, and used by later code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType

import pytest

from cellblock.errors import InvalidInputError
from cellblock.tools.calling import search
from cellblock.tools.calling.actions import save_action, save_parser

API = '''
from dataclasses import dataclass


@dataclass
class Repo:
    name: str
    stars: int


def run(username: str, top: int = 3) -> list[Repo]:
    """Return the repositories of somebody that have the most stars.

    Args:
        username: Whose.
        top: How many.
    """
'''
IMPL = """
from .api import Repo


def run(username, top=3):
    return [Repo(f"{username}/{number}", 10 - number) for number in range(top)]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace, which code can import from. What was imported is forgotten: other tests have such packages, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget_packages()


def load(name: str) -> ModuleType:
    """Import a module that was written just now."""
    forget_packages()
    return import_module(name)


def forget_packages() -> None:
    """Forget the packages of tools and actions that were imported."""
    for known in [known for known in sys.modules if known.partition(".")[0] in ("gentools", "mcpparse", "mcptools")]:
        del sys.modules[known]
    invalidate_caches()


def test_an_action_is_used_by_later_code(here: Path) -> None:
    assert save_action("github", "top_repos", API, IMPL) == Path("gentools/github/top_repos")
    module = load("gentools.github.top_repos")
    assert [(repo.name, repo.stars) for repo in module.run("ann", top=2)] == [("ann/0", 10), ("ann/1", 9)]
    assert module.__all__ == ["Repo", "run"]
    assert not [path.name for path in Path("gentools/github").iterdir() if path.name.startswith(".")]


def test_an_action_is_found_without_its_implementation(here: Path) -> None:
    save_action("github", "top_repos", API, IMPL)
    assert search.names("repositories stars", root_dir="gentools") == ["github.top_repos"]
    assert search.signatures(root_dir="gentools") == [
        "github.top_repos(username: str, top: int=3) -> list[Repo]  "
        "# Return the repositories of somebody that have the most stars."
    ]
    shown = search.source("github.top_repos", root_dir="gentools")
    assert "class Repo" in shown
    assert "range(top)" not in shown


def test_an_async_action(here: Path) -> None:
    api = 'async def run(word: str) -> str:\n    """Say a word."""\n    ...\n\n\nOTHER = 1\n'
    save_action("words", "say", api, "async def run(word):\n    return word\n")
    module = load("gentools.words.say.api")
    with pytest.raises(StopIteration, match="hello"):
        module.run("hello").send(None)
    assert module.OTHER == 1


def test_an_action_is_replaced_on_request_only(here: Path) -> None:
    save_action("github", "top_repos", API, IMPL)
    with pytest.raises(InvalidInputError, match="replace=True"):
        save_action("github", "top_repos", API, IMPL)
    save_action("github", "top_repos", API, IMPL.replace("10 - number", "number"), replace=True)
    assert load("gentools.github.top_repos").run("ann", 1)[0].stars == 0


@pytest.mark.parametrize(
    ("api", "impl", "why"),
    [
        ("def run(", IMPL, "api is not valid Python"),
        ("x = 1", IMPL, "api must define a function run"),
        (API, "x = 1", "impl must define a function run"),
        (API.replace(": str, top", ", top"), IMPL, "annotate what run takes: username"),
        (API.replace(" -> list[Repo]", ""), IMPL, "annotate what run returns"),
        ("def run(a: int) -> int: return a", "def run(a): return a", "a docstring that says"),
        (API, "def run(user, top): pass", "impl must have the parameters of api"),
        ('def run(*a: int) -> int:\n    """Do."""', "def run(*a): pass", "plain parameters"),
    ],
)
def test_what_is_wrong_with_an_action_is_said(here: Path, api: str, impl: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        save_action("github", "top_repos", api, impl)
    assert not Path("gentools").exists()


@pytest.mark.parametrize("name", ["../evil", "a.b", "class", "", "_hidden", "a" * 200])
def test_a_name_is_an_identifier(here: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="identifier"):
        save_action(name, "x", API, IMPL)
    with pytest.raises(InvalidInputError, match="identifier"):
        save_parser("server", name, "")


def test_a_tool_that_returns_text_gets_a_parser(here: Path) -> None:
    tool = Path("mcptools/files")
    tool.mkdir(parents=True)
    for package in (tool.parent, tool):
        (package / "__init__.py").touch()
    (tool / "list_names.py").write_text("class Params: pass\ndef run(params): return 'a\\nb'\n")
    parser = "class ParseResult(list): pass\n\n\ndef parse(text):\n    return ParseResult(text.splitlines())\n"
    assert save_parser("files", "list_names", parser) == Path("mcpparse/files/list_names.py")
    load("mcptools.files.list_names")
    module = load("mcpparse.files.list_names")
    assert module.run_parsed(module.Params()) == ["a", "b"]
    with pytest.raises(InvalidInputError, match="replace=True"):
        save_parser("files", "list_names", parser)
    with pytest.raises(InvalidInputError, match="ParseResult"):
        save_parser("files", "other", "def parse(text): pass")
    with pytest.raises(InvalidInputError, match="one parameter"):
        save_parser("files", "other", "def parse(): pass")
