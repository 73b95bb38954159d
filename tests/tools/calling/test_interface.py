"""What a model reads of a module before it calls the tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.tools.apigen.package import write_package
from cellblock.tools.calling import search
from cellblock.tools.calling.content import ToolSpec
from cellblock.tools.calling.interface import interface_of

_PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A server."""
    write_package(tmp_path, "files", [ToolSpec("readFile", "Read the content of a file.", _PATH)])
    return tmp_path


def test_a_module_is_shown_without_what_only_python_needs(root: Path) -> None:
    shown = search.interface("files.readfile", root)
    assert shown.startswith('class Params(ParamsModel):\n    path: str\n\ndef run(params: Params) -> str:\n    """Read the')
    assert not [line for line in shown.splitlines() if "import" in line or "return" in line]


def test_enumerations_are_on_one_line_and_long_ones_say_how_to_see_all(root: Path) -> None:
    languages = "".join(f"    l{number} = 'language-{number}'\n" for number in range(30))
    few = "class Size(Enum):\n    s = 's'\n    l = 'l'\n    one = 1\n"
    module = f"from enum import Enum\n\n\nclass Language(Enum):\n{languages}\n\n{few}\n\nclass Params:\n    x: Size\n"
    (root / "files" / "readfile.py").write_text(module)
    lines = search.interface("files.readfile", root).split("\n\n")
    assert lines[0] == "class Language(Enum): ...  # language-0 language-1 … all 30: [*Language]"
    assert lines[1:] == ["class Size(Enum): ...  # s l 1", "class Params:\n    x: Size"]


def test_a_long_module_is_shortened_and_says_where_all_of_it_is(root: Path) -> None:
    words = "The file, e.g. a text. " + "More about it. " * 250
    count = {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many."}
    path = {"type": "string", "maxLength": 9, "description": words}
    more = {f"more{number}": {"type": "string", "description": words} for number in range(3)}
    schema = {"type": "object", "properties": {"path": path, "count": count, **more}, "required": ["path"]}
    write_package(root, "long", [ToolSpec("read", "Read it.\n\nWhen to use:\n- always\n- never", schema)])
    shown = search.interface("long.read", root)
    assert len(shown) < 600
    assert "path: The file, e.g. a text.\n    count: How many." in shown
    assert "    path: str\n    count: int | None = None\n" in shown
    assert "always" not in shown
    assert shown.endswith(f"# Shortened. The whole module: {root.name}/long/read.py")


def test_of_a_module_that_anybody_may_have_written_little_is_looked_at() -> None:
    for hostile in ('    """x"""y\n', '"""\n', "    a: b[" + "[" * 400 + "\n", "class A(Enum):\n    a = 1\n"):
        assert len(interface_of(hostile * 50_000, "x")) < 120_000
