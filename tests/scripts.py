"""Python in a process of its own, for what a process cannot be tested for from inside of another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

Script = Callable[[str], list[str]]
"""Runs a script, which must not fail or complain, and returns the lines that it prints"""


def printed(script: str) -> list[str]:
    """Run a script, which must not fail or complain, and return the lines that it prints."""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout.splitlines()
