"""What saving a session and loading it again report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that could not be kept.

    Attributes:
        name: The variable, or what else it is, such as ``the working directory``.
        reason: Why.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What `Session.save` has written.

    Attributes:
        path: The file.
        size: How many bytes it has.
        saved: The variables in it.
        left_out: What could not be kept, and why.
        cells: How many cells of the history are in it.
        files: Whether the files of the workspace are in it.
    """

    path: Path
    size: int
    saved: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    cells: int = 0
    files: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {
            "path": str(self.path),
            "size": self.size,
            "saved": self.saved,
            "left_out": _plain(self.left_out),
            "cells": self.cells,
            "files": self.files,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SaveReport:
        """Return the report that `to_dict` has written."""
        return cls(**{**data, "path": Path(data["path"]), "left_out": _read(data["left_out"])})


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What `Session.load` has brought back.

    Attributes:
        loaded: The variables.
        left_out: What could not be brought back, and why; what was left out when the session was saved comes first.
        cells: How many cells the history has.
        files: Whether the files of the workspace were brought back.
    """

    loaded: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    cells: int = 0
    files: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {"loaded": self.loaded, "left_out": _plain(self.left_out), "cells": self.cells, "files": self.files}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoadReport:
        """Return the report that `to_dict` has written."""
        return cls(**{**data, "left_out": _read(data["left_out"])})


def _plain(left_out: list[LeftOut]) -> list[dict[str, str]]:
    return [{"name": one.name, "reason": one.reason} for one in left_out]


def _read(left_out: list[dict[str, str]]) -> list[LeftOut]:
    return [LeftOut(one["name"], one["reason"]) for one in left_out]
