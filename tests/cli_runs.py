"""The command line in this process: what a program of its own would print, without its half a second."""

from __future__ import annotations

import contextlib
import io
import subprocess
from pathlib import Path

from cellblock.fronts.cli import main


def run_here(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line; return what it prints, and its status."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd or "."), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = main(arguments)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())
