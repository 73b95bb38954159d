"""Runs the complete agents of docs/frameworks.md, with models that follow a script."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
_PROGRAM = re.compile(r"^```py\n(.*?)^```\n+^```text\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def check_agent(section: str, **names: Any) -> None:
    """Run the program of a section, which must print what the page shows below it.

    Args:
        section: The section's heading.
        names: What the program takes as given, such as `model`.
    """
    text = _PAGE.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    found = _PROGRAM.search(body)
    assert found is not None, f"the section {section} of docs/frameworks.md has no program with its output"
    name, printed = f"docs/frameworks.md, {section}", io.StringIO()
    # smolagents reads the source of tools.
    linecache.cache[name] = (len(found[1]), None, found[1].splitlines(keepends=True), name)
    code = compile(found[1], name, "exec")
    with contextlib.redirect_stdout(printed), ThreadPoolExecutor(1) as pool:  # a thread is free to run a loop of its own
        pool.submit(exec, code, {"__name__": "__main__", **names}).result()
    shown = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())
    assert shown == found[2], f"it printed:\n{shown}"
