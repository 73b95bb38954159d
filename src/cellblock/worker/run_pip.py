"""Runs pip: the interpreter's own, or else the one bundled with Python. Started by path, never imported."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path


def _find_pip() -> None:
    """Make pip importable.

    Raises:
        SystemExit: pip is missing.
    """
    if importlib.util.find_spec("pip") is not None:
        return
    if (bundled := importlib.util.find_spec("ensurepip")) is not None and bundled.origin is not None:
        for directory in (Path(bundled.origin).parent / "_bundled", Path("/usr/share/python-wheels")):
            for wheel in sorted(directory.glob("pip-*.whl")):
                sys.path.insert(0, str(wheel))
                return
    sys.exit(f"{sys.executable} has no pip: install it there, such as with 'uv pip install pip'")


if __name__ == "__main__":
    _find_pip()
    sys.argv[0] = "pip"
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
