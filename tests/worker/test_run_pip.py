"""Running pip where the interpreter has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cellblock

RUN = str(Path(cellblock.__file__).parent / "worker" / "run_pip.py")


@pytest.mark.slow
def test_an_interpreter_without_pip_uses_the_one_that_comes_with_python() -> None:
    # Without site-packages (-S) pip is not found there.
    done = subprocess.run([sys.executable, "-I", "-S", RUN, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pip ")
    assert "_bundled" in done.stdout or "python-wheels" in done.stdout
