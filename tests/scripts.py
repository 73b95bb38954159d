"""Python in a process of its own, for what a process cannot be tested for from inside of another."""

from __future__ import annotations

import subprocess
import sys


def printed(script: str) -> list[str]:
    """Run a script, which must not fail or complain, and return the lines that it prints."""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout.splitlines()


def refusals(script: str) -> list[str]:
    """Run a script that has the functions of `worker.forks.safety`, and return the lines that it prints."""
    return printed(f"import os, sys, threading, time\nfrom cellblock.worker.forks.safety import *\n{script}")
