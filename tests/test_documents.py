"""The documents are true: their Python runs and prints what they show, their links lead somewhere, their commands exist.

A ``python`` block that is followed by a ``text`` block prints exactly that. The blocks of one document share their names, as
in ``python -m asyncio``; a block that calls `asyncio.run` is a program of its own.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import io
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock.common import loop_thread
from cellblock.host import shared
from cli_commands import wrong_in
from daemons import own_daemon
from suite import SEED

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_SHELL = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_UNTESTED = re.compile(r"^```py\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TARGETS = re.compile(r"^([\w$(). /-]+):", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@pytest.fixture
async def own_shared_host(nothing_left_behind: None) -> AsyncIterator[None]:
    """The host that the executors of a document share; it would stay warm for the next ones otherwise."""
    host = await shared.acquire()
    yield
    shared.release(host)
    await host.close()


def blocks(document: Path) -> Iterator[tuple[int, str, str | None]]:
    """Yield the Python blocks of a document: line, code, and what it is shown to print."""
    text = document.read_text()
    for match in _BLOCK.finditer(text):
        yield text[: match.start()].count("\n") + 2, match[1], match[2]


def name(document: Path) -> str:
    """A document's path, as people write it."""
    return str(document.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("document", [path for path in DOCUMENTS if any(blocks(path))], ids=name)
async def test_the_python_of_a_document_prints_what_it_shows(
    own_shared_host: None, document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = "get_or_create(" in document.read_text()
    with own_daemon(tmp_path) if named else contextlib.nullcontext():
        await _run(document)
    if named or "SyncCodeExecutor(" in document.read_text():
        loop_thread.shared().close()  # where synchronous executors run, with their host


@pytest.mark.slow
@pytest.mark.timeout(600)  # 15 s of processor time
async def test_the_commands_of_the_readme_work_in_any_order(own_shared_host: None, tmp_path: Path) -> None:
    """With a daemon running. The orders differ from day to day, and are the same when the test is run once more."""
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"(?:^|`)\.venv/bin/(cellblock [^`#\n]+)(?:`|# (.*)$)", text, re.MULTILINE)
    assert len(commands) > 1
    ((_, program, shown),) = blocks(ROOT / "README.md")
    order = [*commands, commands[0], (program, shown)]
    chosen = random.Random(os.environ[SEED])
    with own_daemon(tmp_path):
        for _ in range(2):
            chosen.shuffle(order)
            for command, expected in order:
                if command is program:
                    assert await _in_turn(program, {"__name__": "document"}, "README.md") == expected
                    continue
                line = shlex.split(command)
                line[0] = str(Path(sys.executable).parent / line[0])
                done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=300, check=False)
                assert (done.returncode, done.stderr) == (0, ""), order
                assert expected in ("", done.stdout.strip()), order


async def _run(document: Path) -> None:
    names: dict[str, Any] = {"__name__": "document"}
    for line, code, shown in blocks(document):
        printed = await (_program(code) if "asyncio.run(" in code else _in_turn(code, names, f"{name(document)}:{line}"))
        if shown is not None:
            assert printed == shown, f"{name(document)}, line {line}"


async def _program(code: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def _in_turn(code: str, names: dict[str, Any], place: str) -> str:
    compiled = compile(code, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        running = eval(compiled, names)
        if inspect.iscoroutine(running):
            await running
    return printed.getvalue()


def commands(document: Path) -> Iterator[list[str]]:
    """Yield the words of each command in the shell blocks of a document."""
    for block in _SHELL.findall(document.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";|&()<>")
            lexer.whitespace_split = True
            words: list[str] = []
            with contextlib.suppress(ValueError):  # a quotation over several lines
                for word in [*lexer, ";"]:
                    if set(word) <= set(";|&()<>"):
                        yield words
                        words = []
                    elif words or not re.fullmatch(r"\w+=.*", word):
                        words.append(word)


def test_commands_of_documents_exist() -> None:
    targets = set(" ".join(_TARGETS.findall((ROOT / "Makefile").read_text())).split())
    wrong = []
    for document in DOCUMENTS:
        for program, *words in filter(None, commands(document)):
            if program == "cellblock" and wrong_in(words) and words != ["lsit"]:  # a mistake on purpose
                wrong.append((name(document), words))
            if program == "make" and not {word for word in words if "=" not in word} <= targets:
                wrong.append((name(document), words))
    assert wrong == []


def test_the_other_python_of_documents_compiles() -> None:
    for document in DOCUMENTS:
        for code in _UNTESTED.findall(document.read_text()):
            compile(code, name(document), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_links_within_the_repository_lead_somewhere() -> None:
    links = [(document, link) for document in DOCUMENTS for link in _LINK.findall(prose(document)) if "://" not in link]
    assert [(name(document), link) for document, link in links if not leads_somewhere(document, link)] == []


def leads_somewhere(document: Path, link: str) -> bool:
    """Return whether the file and the heading of a link exist."""
    path, _, heading = link.partition("#")
    target = document.parent / path if path else document
    return target.exists() and (not heading or target.suffix != ".md" or heading in headings(target))


def prose(document: Path) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def headings(document: Path) -> set[str]:
    """Return the names of the headings of a document, as GitHub links to them."""
    titles = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", _LINK_TEXT.sub(r"\1", title).lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert [
        path.name for path in ROOT.glob("docs/*.md") if not re.search(rf": {re.escape(path.name)}$", navigation, re.MULTILINE)
    ] == []


def test_commands_that_do_not_exist_are_seen() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("exec demo 1", []),
        ("exec --timeout 3 demo 1", []),
        ("exce demo 1", ["exce"]),
        ("exec --limit 3 demo", ["--limit"]),
        ("trash move demo", []),
        ("sh demo -- ls --all", []),
        ("run --memory 2G script.py --verbose", []),
        ("daemon begin", ["begin"]),
    ]
    for words, wrong in cases:
        assert wrong_in(words.split()) == wrong
