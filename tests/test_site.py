"""The pages of the site that are generated from the code."""

from __future__ import annotations

import ast
import dataclasses
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from cellblock.operations import OPERATIONS
from cellblock.wire import control, copies, messages, program_messages, sandbox
from cellblock.wire.datagrams import Incoming

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs" / "site"))

import pages  # type: ignore[import-not-found]  # noqa: E402


def rows(page: str) -> list[list[str]]:
    """Return the cells of all rows of tables in a page."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


@pytest.mark.slow
def test_every_module_is_listed_with_what_it_does() -> None:
    shown = [(name, text) for name, text in (row for row in rows(pages.modules()) if len(row) == 2) if name.startswith("`")]
    assert len(shown) == len([*(ROOT / "src" / "cellblock").rglob("*.py")])
    assert [name for name, text in shown if not text] == []


@pytest.mark.slow
def test_every_message_is_listed_with_its_fields() -> None:
    incoming = [
        one for module in (control, copies, program_messages) for one in vars(module).values() if isinstance(one, Incoming)
    ]
    kinds: list[Any] = [*get_args(messages.ToWorker), *get_args(messages.ToHost), *get_args(sandbox.Step)]
    kinds += [kind for one in incoming for kind in one.kinds.values()]
    page = pages.wire()
    for kind in kinds:
        assert pages._table([("name", kind)]).partition("| `name` ")[2] in page, kind


def test_every_request_is_listed_with_its_fields() -> None:
    page = pages.requests()
    for name, kind in OPERATIONS.items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # it is a dataclass
        assert [row[0].strip("`") for row in rows(section)[2:]] == fields


@pytest.mark.slow
def test_every_error_is_listed_with_what_it_says() -> None:
    sections = {part.partition("\n")[0]: {row[0] for row in rows(part)} for part in pages.problems().split("\n## ")}
    found = 0
    for path in sorted((ROOT / "src" / "cellblock").rglob("*.py"))[::10]:
        for name, text in pages.raised(ast.parse(path.read_text(encoding="utf-8"))):
            assert rows(f"| {pages._cell(pages._literal(text))} |")[0][0] in sections[name], text
            found += 1
    assert found > 50


def test_texts_of_errors_are_found() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("raise StateError('it is closed')", ["it is closed"]),
        ("raise StateError(f'{self._name!r} is closed') from error", ["{name} is closed"]),
        ("StateError('it ' + ('is new' if new else 'is old'), 1)", ["it is new", "it is old"]),
        ("_WHY = 'it is closed'\nraise StateError(_WHY)", ["it is closed"]),
        ("StateError(f'{shown(one.path)} is there: {a + b}')", ["{path} is there: {…}"]),
        ("StateError(str(error))\nprint('it is closed')", []),
    ]
    for source, texts in cases:
        assert [text for _, text in pages.raised(ast.parse(source))] == texts
