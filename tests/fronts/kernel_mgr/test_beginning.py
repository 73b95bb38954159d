"""The code that a `KernelClient` runs first works in every IPython, and leaves no names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock.fronts.kernel_mgr.beginning import beginning

_PROGRAM = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
before = {*shell.user_ns}
for cell in json.load(sys.stdin):
    shell.run_cell(cell, store_history=False).raise_error()
new = [*{*shell.user_ns} - before - {"os"}]
set_to = [os.environ.get(name) for name in ("TERM", "NO_COLOR", "FORCE_COLOR")]
print(json.dumps([new, os.getcwd(), shell.colors.lower(), set_to]))
"""


def run(tmp_path: Path, *cells: str) -> tuple[list[str], list[object]]:
    """Run cells in a plain IPython, in a process of its own; return what they print, and what they leave."""
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "TERM": "xterm", "FORCE_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(cells),
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    *printed, left = done.stdout.splitlines()
    return printed, json.loads(left)


@pytest.mark.slow
def test_a_kernel_of_others_shows_no_colours(tmp_path: Path) -> None:
    printed, left = run(tmp_path, beginning(None, plain=False))
    assert printed == []
    assert left == [[], str(tmp_path), "nocolor", ["dumb", "1", None]]


@pytest.mark.slow
def test_a_kernel_comes_back(tmp_path: Path) -> None:
    work = tmp_path / "it's {here}"
    work.mkdir()
    gone = "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    printed, left = run(tmp_path, beginning(work, plain=True), "import os; os.chdir('/')", "print(os.getcwd())", gone)
    note = f"[cellblock] cwd reset to {work}"
    assert printed == [note, str(work), note]
    assert left[:2] == [[], str(work)]


def test_our_own_kernel_needs_nothing() -> None:
    assert beginning(None, plain=True) == ""
