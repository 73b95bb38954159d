"""docs/cli.md shows what the commands print."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from daemons import own_daemon
from terminals import terminal

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


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
