"""Prints a table of slow tests: what they protect, how many there are, and how long they took.

.venv/bin/python -m pytest -m slow -p processor_time
.venv/bin/python tests/slow_tests.py [build/processor-time.jsonl]
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent


def purpose(file: str) -> str:
    """Return the first sentence of what a file says about itself."""
    text = ast.get_docstring(ast.parse((TESTS / file).read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[.:])\s|\n\n", text.replace("|", "/"))[0].replace("\n", " ").rstrip(":.")


def counted() -> dict[str, int]:
    """Return how many slow tests each file has."""
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "slow", "--mutants=all", str(TESTS)]
    shown = subprocess.run(collect, capture_output=True, text=True, check=True, cwd=TESTS.parent).stdout
    return {name: int(count) for name, count in re.findall(r"^tests/(\S+\.py): (\d+)$", shown, re.MULTILINE)}


def timed(report: str) -> dict[str, float]:
    """Return how many seconds each file took, from the report of `processor_time`."""
    found: defaultdict[str, float] = defaultdict(float)
    for line in Path(report).read_text().splitlines():
        name, seconds, *_ = json.loads(line)
        found[name.partition("::")[0].removeprefix("tests/")] += seconds
    return found


def main(*reports: str) -> None:
    """Print the table."""
    times = timed(reports[0]) if reports else {}
    print("| tests | slow | s | what they protect |\n|---|---|---|---|")
    for name, count in sorted(counted().items()):
        seconds = f"{times[name]:.0f}" if name in times else "–"
        print(f"| `{name}` | {count} | {seconds} | {purpose(name)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
