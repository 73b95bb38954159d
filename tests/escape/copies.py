"""Copies of the package in which a defence is switched off."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import cellblock


class Edit(NamedTuple):
    """A place in the code, and what to put there."""

    file: str
    old: str
    new: str


def copied(place: Path, *edits: Edit) -> Path:
    """Copy the package into a new directory, with edits, each in a place that is there once; return the directory."""
    shutil.copytree(Path(cellblock.__file__).parent, place / "cellblock", ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in edits:
        path = place / "cellblock" / file
        text = path.read_text()
        assert text.count(old) == 1, (file, old)
        path.write_text(text.replace(old, new))
    return place


def environment(package: Path) -> dict[str, str]:
    """Return the environment in which a program imports a copy."""
    return {**os.environ, "PYTHONPATH": str(package), "TMPDIR": str(package)}
