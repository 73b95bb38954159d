"""Readers and writers of what code in a session may have made follow no link, from the root directory on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.errors import InvalidInputError
from cellblock.tools.calling import actions, beneath, catalog, search

API = 'def run(x: int) -> int:\n    """Add one."""\n    ...\n'
IMPL = "def run(x):\n    return x + 1\n"
SECRET = "def run(secret: str) -> str:\n    '''The secret of the host.'''\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that no link may lead to."""
    place = tmp_path / "outside"
    (place / "category/name").mkdir(parents=True)
    (place / "name").mkdir()
    for file in ("category/name/api.py", "category/name.py", "name/api.py", "name.py", "api.py"):
        (place / file).write_text(SECRET)
    return place


@pytest.fixture(params=["the root", "a category", "an action", "a file"])
def root(request: pytest.FixtureRequest, tmp_path: Path, outside: Path) -> Path:
    """A directory of tools in which one thing is a link to the outside."""
    root = tmp_path / "workspace" / "gentools"
    match request.param:
        case "the root":
            root.parent.mkdir()
            root.symlink_to(outside)
        case "a category":
            root.mkdir(parents=True)
            (root / "category").symlink_to(outside / "category")
        case "an action":
            (root / "category").mkdir(parents=True)
            (root / "category/name").symlink_to(outside / "category/name")
        case "a file":
            (root / "category/name").mkdir(parents=True)
            (root / "category/name/api.py").symlink_to(outside / "api.py")
            (root / "category/name.py").symlink_to(outside / "api.py")
    return root


def test_nothing_is_read_through_a_link(root: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no tool"):
        catalog.source("category.name", root_dir=root)
    assert catalog.tools(root) == []
    assert search.names("secret", root) == search.signatures(root_dir=root) == []


def test_nothing_is_written_through_a_link(root: Path, outside: Path) -> None:
    before = sorted(outside.rglob("*"))
    for save in (
        lambda: actions.save_action("category", "name", API, IMPL, root_dir=root, replace=True),
        lambda: actions.save_parser(
            "category", "name", "class ParseResult: ...\ndef parse(x): ...", root_dir=root, replace=True
        ),
    ):
        _saved_or_refused(save)
    assert sorted(outside.rglob("*")) == before
    assert all(path.read_text() == SECRET for path in before if path.is_file())


def _saved_or_refused(save: Callable[[], Path]) -> None:
    try:
        saved = save()
    except InvalidInputError as error:
        assert "must be a folder, and not a link" in str(error)  # noqa: PT017  # only if it is refused
    else:
        assert not saved.is_symlink()


def test_an_action_takes_the_place_of_another_whole(tmp_path: Path) -> None:
    place = actions.save_action("math", "add", API, IMPL, root_dir=tmp_path / "gentools")
    (place / "left.py").write_text("")
    with pytest.raises(InvalidInputError, match="there is an action"):
        actions.save_action("math", "add", API, IMPL, root_dir=tmp_path / "gentools")
    again = actions.save_action("math", "add", API, IMPL.replace("1", "2"), root_dir=tmp_path / "gentools", replace=True)
    assert sorted(os.listdir(again)) == ["__init__.py", "api.py", "impl.py"]
    assert sorted(os.listdir(tmp_path / "gentools/math")) == ["__init__.py", "add"]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    with beneath.folder(tmp_path / "a", "b", make=True) as held:
        beneath.write(held, "file", "one")
        beneath.write_folder(held, "folder", {"file": "one"})
        with pytest.raises(UnicodeEncodeError):
            beneath.write(held, "file", "\ud800")
        with pytest.raises(UnicodeEncodeError):
            beneath.write_folder(held, "folder", {"new": "", "file": "\ud800"})
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "a", "a/b", "a/b/file", "a/b/folder", "a/b/folder/file",
    ]  # fmt: skip
    assert (tmp_path / "a/b/file").read_text() == "one"


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        beneath.read(tmp_path, "pipe", most=10)
