"""docs/cli.md shows what the commands print, and no page has a command or an option that does not exist."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cellblock.fronts.cli.app import app
from daemons import own_daemon
from terminals import terminal

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "cli.md"
PAGES = [path for place in ("*.md", "docs/**/*.md", "examples/**/*.md", "plugin/**/*.md") for path in sorted(ROOT.glob(place))]


def shown() -> list[tuple[str, str]]:
    """Return the commands of the page, each with what it prints."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```\n", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


def pattern(text: str) -> str:
    """Return what a text may look like: … stands for anything in a line, and alone in a line for any lines.

    Columns may be further apart: on a slower machine more seconds pass, which take more characters.
    """
    lines = [line.rstrip() for line in text.strip().splitlines()]
    exact = "".join("(?:.*\n)*?" if line == "…" else "[^\n]*".join(map(re.escape, line.split("…"))) + "\n" for line in lines)
    return re.sub(r"(?:\\ ){2,}", " {2,}", exact)


@pytest.mark.slow
@pytest.mark.timeout(320)  # 25 s on a free machine
def test_the_page_shows_what_the_commands_print(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    wrong = []
    with own_daemon(tmp_path):
        for command, expected in shown():
            with terminal("sh", "-c", command, PATH=path, COLUMNS="200") as screen:  # no path is too long
                screen.end()
            printed = "".join(f"{line.rstrip()}\n" for line in screen.text.replace("\r", "").strip().splitlines())
            if not re.fullmatch(pattern(expected), printed):
                wrong.append(f"$ {command}\n{printed}")
    assert not wrong, "\n".join(wrong)


def commands(text: str) -> Iterator[str]:
    """Yield the arguments of each command of cellblock in the shell blocks of a page, and in its text."""
    for block in re.findall(r"^```sh\n(.*?)^```\n", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if "docker " not in line:  # there it is the name of an image
                yield from re.findall(r"(?:^|[ /(;&|])cellblock (?!-- )([^#;&|]*)", line)
    yield from re.findall(
        r"`(?:\S*/)?cellblock ([a-z-][^`\n]*)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    )


@functools.cache
def _top() -> Any:
    return typer.main.get_command(app)


def unknown(arguments: str) -> list[str]:
    """Return which commands and options of a command line do not exist."""
    command = _top()
    words = arguments.split()
    options = {"--help", "--"}.union(*(parameter.opts for parameter in command.params))
    while hasattr(command, "commands") and words and re.fullmatch(r"[a-z][a-z|-]*", words[0]):
        names = words.pop(0).split("|")
        if missing := {*names} - command.commands.keys():
            return sorted(missing)
        command = command.commands[names[0]]
    options = options.union(*([*parameter.opts, *parameter.secondary_opts] for parameter in command.params))
    own = words[: words.index("script.py")] if "script.py" in words else words  # others are the script's
    given = {found[0] for word in own if (found := re.match(r"--[a-z0-9-]*", word.strip("[]'\"")))}
    return sorted(given - options)


def test_every_page_has_commands_and_options_that_exist() -> None:
    found = [(path.name, line) for path in PAGES for line in commands(path.read_text(encoding="utf-8"))]
    assert len(found) > 100
    assert [(name, line, wrong) for name, line in found if (wrong := unknown(line))] == []


def test_a_command_or_an_option_that_does_not_exist_is_found() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("exec demo 1 --tiemout 3", ["--tiemout"]),
        ("daemon stpo", ["stpo"]),
        ("tokens list|revoek", ["revoek"]),
        ("run --memory 1G script.py --theirs", []),
    ]
    for line, wrong in cases:
        assert unknown(line) == wrong
