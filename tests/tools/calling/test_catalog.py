"""The catalogue of generated packages, which a session may have written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.tools.calling import catalog


def package(root: Path, name: str, record: Any) -> Path:
    place = root / name
    place.mkdir(parents=True)
    text = record if isinstance(record, str) else json.dumps(record)
    (place / catalog.RECORD).write_text(text)
    return place


def entry(module: str = "now", **more: Any) -> dict[str, Any]:
    return {"module": module, "name": module, "signature": f"{module}() -> str", "description": "Tell it. More.", **more}


def test_tools_are_listed_by_server_and_as_each_server_lists_them(tmp_path: Path) -> None:
    package(tmp_path, "b", {"generator": "cellblock", "tools": [entry("z"), entry("a")]})
    package(tmp_path, "a", {"generator": "cellblock", "tools": [entry()]})
    found = catalog.tools(tmp_path)
    assert [tool.path for tool in found] == ["a.now", "b.z", "b.a"]
    assert found[0].summary == "Tell it."


@pytest.mark.parametrize(
    "record",
    [
        "{",
        "[" * 100_000,
        [],
        {"tools": [entry()]},
        {"generator": "another", "tools": [entry()]},
        {"generator": "cellblock", "tools": {}},
        {"generator": "cellblock", "tools": [None, "x", {}, entry("../up"), entry("a b")]},
    ],
)
def test_a_record_that_is_none_lists_nothing(tmp_path: Path, record: Any) -> None:
    package(tmp_path, "server", record)
    assert catalog.tools(tmp_path) == []


def test_what_is_long_is_cut(tmp_path: Path) -> None:
    package(tmp_path, "server", {"generator": "cellblock", "tools": [entry(description="x" * 10_000)]})
    assert len(catalog.tools(tmp_path)[0].description) == 2000


def test_links_and_odd_names_are_no_packages(tmp_path: Path) -> None:
    package(tmp_path / "elsewhere", "real", {"generator": "cellblock", "tools": [entry()]})
    root = tmp_path / "mcptools"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere" / "real")
    package(root, "not-a-name", {"generator": "cellblock", "tools": [entry()]})
    assert catalog.tools(root) == []
    assert catalog.tools(tmp_path / "missing") == []


def test_the_source_of_a_tool_is_read_and_nothing_else_is(tmp_path: Path) -> None:
    place = package(tmp_path, "server", {})
    (place / "now.py").write_text("x = 1")
    (place / "linked.py").symlink_to("now.py")
    (place / "folder.py").mkdir()
    os.mkfifo(place / "pipe.py")
    assert catalog.source("server.now", tmp_path) == "x = 1"
    for path in (
        "server.linked",
        "server.folder",
        "server.pipe",
        "server.none",
        "server",
        "..server.now",
        "server.now.py",
        "/.x",
    ):
        with pytest.raises(InvalidInputError, match="there is no tool"):
            catalog.source(path, tmp_path)
